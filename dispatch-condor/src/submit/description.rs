//! Builds submit descriptions for condor_submit from settings and jobs. Formats: condor_submit(1).
//! Pure.
//!
//! A description has no secret: the token is transferred as a file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arvados_client::{ContainerUuid, TokenUuid};
use crunch_contract::LEAVE_TO_DISPATCHER;
use crunch_contract::job_dir::token_file_for;
use dispatch_core::model::instance_types::{InstanceType, NoInstanceTypeFits, name_for};
use dispatch_core::model::owner::{Charge, KnownOwner, Owner};
use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::model::staging_allowance::StagingAllowance;
use dispatch_core::scheduler::owner_map::{self, OwnerMap};
use dispatch_core::scheduler::template::{Substitution, Values, owner_value};

use crate::submit::admin_lines::{AdminLines, Line, LineError, RequestedKinds};
use crate::submit::gpus;
use crate::submit::macros::{TEMPLATE_MACROS, field_names};
use crate::submit::quoting::{self, Unquotable};
use crate::submit::restart_and_hold_policy::{MaxStarts, requirements};

/// Job attribute with the uuid of the container.
pub const CONTAINER_ATTRIBUTE: &str = "ContainerUUID";
/// Job attribute with the uuid of the attempt.
pub const ATTEMPT_ATTRIBUTE: &str = "AttemptUUID";
/// Job attribute with the instance id of the dispatcher that submitted the job.
pub const DISPATCHER_ATTRIBUTE: &str = "ContainerDispatcher";
/// Job attribute with the name of the container's user, for people who look at the queue.
const USER_ATTRIBUTE: &str = "ContainerUser";
/// Job attribute with the uuid of the container's project.
const PROJECT_ATTRIBUTE: &str = "ContainerProject";
const KIB: u64 = 1 << 10;
/// Environment variable of jobs that names a file.
const CERTIFICATE_VARIABLE: &str = "SSL_CERT_FILE";

/// Why jobs cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    #[error(transparent)]
    Unquotable(#[from] Unquotable),
    /// A line of the owner map is wrong.
    #[error(transparent)]
    Line(#[from] LineError),
    /// No instance type fits the container.
    #[error(transparent)]
    NoInstanceTypeFits(#[from] NoInstanceTypeFits),
    /// A line has the dispatch token.
    #[error(
        "{0:?} in the submit description contains the dispatch token, but job ads are public: remove it, because each job has a token of its own"
    )]
    HoldsToken(String),
}

/// The settings of the admin.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Command of crunch-run on execute nodes: an absolute path and arguments.
    pub crunch_run: Vec<String>,
    /// Whether crunch-run is transferred from this machine, together with the certificate in
    /// [`Self::environment`].
    pub transfer_crunch_run: bool,
    /// Whether machines may join the pool on demand.
    pub pool_grows: bool,
    /// Lines of every description, or of those for certain resource requests.
    pub admin_lines: AdminLines,
    /// Environment variables of jobs, none of them secret.
    pub environment: BTreeMap<String, String>,
    /// Submit lines by user and project.
    pub owner_map: Option<Arc<OwnerMap>>,
    /// Instance types of nodes; may be empty.
    pub instance_types: Vec<InstanceType>,
    /// Time to fetch inputs and save results, added to the run time limit.
    pub staging: StagingAllowance,
    /// Time between TERM and KILL.
    pub stop_grace_seconds: u64,
}

/// The shared values of all jobs of one description.
#[derive(Debug, Clone, Copy)]
pub struct DescriptionParams<'a> {
    pub instance_id: &'a str,
    /// Nodes that the jobs must not run on.
    pub avoid: &'a [String],
    pub requested: RequestedKinds,
    /// Templates of the owner map for the jobs.
    pub owner_lines: &'a [String],
    pub max_starts: MaxStarts,
    /// Path of the job event log, absolute.
    pub event_log: &'a Path,
}

/// One job of a description: a row of its `queue … from (`.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    pub container: &'a ContainerUuid,
    pub attempt: &'a TokenUuid,
    pub needs: &'a ResourceRequest,
    pub owner: Option<&'a Owner>,
    /// Job directory on the submit machine, with the token file.
    pub dir: &'a Path,
}

impl Settings {
    /// How the jobs of an owner are charged.
    pub fn charge(&self, owner: &KnownOwner) -> Charge {
        let used = self.admin_lines.owner_tokens();
        owner_map::charge(self.owner_map.as_deref(), used.iter(), owner.clone())
    }

    /// The templates of the owner map for an owner.
    pub fn owner_lines(&self, owner: Option<&Owner>) -> Arc<[String]> {
        let map = self.owner_map.as_ref();
        map.map(|map| map.arguments(owner)).unwrap_or_default()
    }

    /// Fails if a description cannot be written or contains `secret`; the error is for the admin,
    /// at the start.
    pub fn check(&self, secret: Option<&str>) -> Result<(), DescriptionError> {
        let params = DescriptionParams {
            instance_id: "",
            avoid: &[],
            requested: RequestedKinds::ALL,
            owner_lines: &[],
            max_starts: MaxStarts(1),
            event_log: Path::new("/"),
        };
        let lines = self.lines(&params)?;
        let has_secret = |line: &&Line| secret.is_some_and(|secret| line.text.contains(secret));
        if let Some(line) = lines.iter().find(has_secret) {
            return Err(DescriptionError::HoldsToken(line.key()));
        }
        let owners = self.owner_map.iter().flat_map(|map| map.lines());
        for (who, templates) in owners {
            let is_secret = |text: &String| secret.is_some_and(|secret| text.contains(secret));
            if templates.iter().any(is_secret) {
                let line = format!("the owner map's line of {who}");
                return Err(DescriptionError::HoldsToken(line));
            }
        }
        Ok(())
    }

    /// The description of jobs that differ only in the fields of their items.
    pub fn describe(
        &self,
        params: &DescriptionParams<'_>,
        jobs: &[Item<'_>],
    ) -> Result<String, DescriptionError> {
        let lines = self.lines(params)?;
        let mut lines: Vec<String> = lines.into_iter().map(|line| line.text).collect();
        lines.push(queue_statement());
        for job in jobs {
            lines.push(self.item_line(job)?);
        }
        lines.push(")".to_owned());
        Ok(lines.join("\n") + "\n")
    }

    /// The description of `count` equal jobs that no dispatcher takes for its own.
    pub fn describe_trial(
        &self,
        instance_id: &str,
        event_log: &Path,
        job: Item<'_>,
        count: usize,
    ) -> Result<String, DescriptionError> {
        let params = DescriptionParams {
            instance_id,
            avoid: &[],
            requested: RequestedKinds::of(job.needs, job.owner),
            owner_lines: &self.owner_lines(job.owner),
            max_starts: MaxStarts(1),
            event_log,
        };
        self.describe(&params, &vec![job; count])
    }

    /// The row of one job.
    pub fn item_line(&self, job: &Item<'_>) -> Result<String, DescriptionError> {
        Ok(self.item_fields(job)?.join(","))
    }

    /// The fields of that row, one for each of [`field_names`].
    pub fn item_fields(&self, job: &Item<'_>) -> Result<Vec<String>, DescriptionError> {
        let mut fields = self.requested_fields(job.container, job.needs, job.owner)?;
        fields.insert(TEMPLATE_MACROS.len(), job.attempt.to_string());
        let dir = job.dir.to_string_lossy();
        fields.push(quoting::path_in_list("the job's directory", &dir)?);
        Ok(fields)
    }

    /// The fields that depend on the container's resource request.
    pub fn requested_fields(
        &self,
        container: &ContainerUuid,
        needs: &ResourceRequest,
        owner: Option<&Owner>,
    ) -> Result<Vec<String>, DescriptionError> {
        let values = Values {
            container,
            needs,
            instance_type: name_for(&self.instance_types, needs)?,
            gpu_model: None,
        };
        let mut fields = Vec::new();
        for (letter, _) in TEMPLATE_MACROS {
            let value = match values.of(letter) {
                Substitution::Is(value) => value,
                Substitution::NotAsked | Substitution::Unknown => String::new(),
            };
            let value = match owner_value(letter, owner) {
                Some(of_owner) => of_owner.to_owned(),
                None => value,
            };
            let is_used = letter != 'P' || self.admin_lines.refer_to(RequestedKinds::PARTITIONS);
            let value = if is_used { value } else { String::new() };
            fields.push(quoting::item("what a container asks for", &value)?);
        }
        fields.push(needs.disk().div_ceil(KIB).max(1).to_string());
        let seconds = needs
            .max_run_time
            .unwrap_or(0)
            .saturating_add(self.staging.seconds(needs));
        fields.push(seconds.to_string());
        fields.push(match gpus::require_gpus_expression(needs) {
            none if none.is_empty() => quoting::item("what its GPUs must have", "")?,
            // Digits and operators without a blank, which would end the field.
            rule => rule,
        });
        Ok(fields)
    }

    /// Whether the admin's lines say what a partition is here, where the container names one.
    pub fn fit_partitions(&self, needs: &ResourceRequest) -> Admission {
        match needs.partitions.is_empty() || self.admin_lines.refer_to(RequestedKinds::PARTITIONS) {
            true => Admission::Now,
            false => Admission::Never(format!(
                "it may run in partition {} only, and no submit line of this dispatcher has %P",
                needs.partitions.join(", ")
            )),
        }
    }

    /// The path of the certificate that is transferred with jobs, and its name in their
    /// directories.
    fn certificate(&self) -> Option<(&str, &str)> {
        let path = self
            .environment
            .get(CERTIFICATE_VARIABLE)
            .filter(|_| self.transfer_crunch_run)?;
        Some((path, Path::new(path).file_name()?.to_str()?))
    }

    fn environment(&self) -> Result<String, Unquotable> {
        let here = self.certificate().map(|(_, name)| name);
        let variables = self.environment.iter().map(|(name, value)| {
            let value = here
                .filter(|_| name == CERTIFICATE_VARIABLE)
                .unwrap_or(value);
            quoting::variable(name, value)
        });
        Ok(quoting::quoted_list(
            &variables.collect::<Result<Vec<_>, _>>()?,
        ))
    }

    fn arguments(&self, token: &str) -> Result<String, Unquotable> {
        let theirs = self.crunch_run.iter().skip(1);
        let theirs = theirs.map(|word| quoting::word("an argument of crunch-run", word));
        let mut words = theirs.collect::<Result<Vec<_>, _>>()?;
        // Relative paths: transferred into the job's directory.
        let ours = [
            LEAVE_TO_DISPATCHER,
            "--token-file",
            token,
            "$(ContainerName)",
        ];
        words.extend(ours.map(quoting::with_macros));
        Ok(quoting::quoted_list(&words))
    }

    /// All lines before the items.
    pub fn lines(&self, params: &DescriptionParams<'_>) -> Result<Vec<Line>, DescriptionError> {
        let program = self.crunch_run.first().map_or("crunch-run", String::as_str);
        let token = token_file_for("$(AttemptName)");
        let mut files = format!("$(JobDirectory)/{token}");
        if let Some((path, _)) = self.certificate() {
            files += ", ";
            files += &quoting::path_in_list("the certificate's path", path)?;
        }
        let mut lines = vec![
            "universe = vanilla".to_owned(),
            format!(
                "executable = {}",
                quoting::path("crunch-run's path", program)?
            ),
            format!("transfer_executable = {}", self.transfer_crunch_run),
            format!("arguments = {}", self.arguments(&token)?),
            format!("environment = {}", self.environment()?),
            "Comma = ,".to_owned(),
            "should_transfer_files = YES".to_owned(),
            "when_to_transfer_output = ON_EXIT".to_owned(),
            "transfer_output_files = \"\"".to_owned(),
            format!("transfer_input_files = {files}"),
            "output = $(JobDirectory)/output.log".to_owned(),
            "error = $(JobDirectory)/output.log".to_owned(),
            format!(
                "log = {}",
                quoting::path("the event log's path", &params.event_log.to_string_lossy())?
            ),
            "request_cpus = $(JobCpus)".to_owned(),
            "request_memory = $(JobMemory)".to_owned(),
            "request_disk = $(JobDisk)".to_owned(),
            "request_gpus = $(JobGpus)".to_owned(),
            format!("+{CONTAINER_ATTRIBUTE} = \"$(ContainerName)\""),
            format!("+{ATTEMPT_ATTRIBUTE} = \"$(AttemptName)\""),
            format!("+{DISPATCHER_ATTRIBUTE} = \"{}\"", params.instance_id),
            format!("+{USER_ATTRIBUTE} = \"$(JobUser)\""),
            format!("+{PROJECT_ATTRIBUTE} = \"$(JobProject)\""),
            "notification = never".to_owned(),
        ];
        lines.extend(params.max_starts.lines(self.stop_grace_seconds));
        lines.push(requirements(params.avoid));
        if params.requested.includes(RequestedKinds::RUN_TIME_LIMIT) {
            lines.push("allowed_execute_duration = $(JobSeconds)".to_owned());
        }
        if params.requested.includes(RequestedKinds::GPUS) {
            // An empty expression sets no requirement.
            lines.push("require_gpus = $(JobGpuRule)".to_owned());
        }
        let admins = match params.owner_lines {
            [] => &self.admin_lines,
            owners => &self.admin_lines.with_owner_lines(owners)?,
        };
        Ok(admins.merge_over(lines, params.requested))
    }
}

/// The `queue` line before the items.
pub fn queue_statement() -> String {
    format!("queue {} from (", field_names().join(","))
}

#[cfg(test)]
mod tests;

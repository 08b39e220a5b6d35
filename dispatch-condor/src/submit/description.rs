//! Builds submit descriptions for condor_submit from settings and jobs. Formats: condor_submit(1).
//! Pure.
//!
//! A description has no secret: the token is transferred as a file.

use std::collections::BTreeMap;
use std::path::Path;

use arvados_client::{ContainerUuid, TokenUuid};
use crunch_contract::LEAVE_STOPPED;
use crunch_contract::job_dir::token_file_for;
use dispatch_core::model::instance_types::{InstanceType, NoInstanceTypeFits, name_for};
use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::scheduler::template::{Substitution, Values};

use crate::submit::admin_lines::{AdminLines, Line, RequestedKinds};
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
const KIB: u64 = 1 << 10;
/// Environment variable of jobs that names a file.
const CERTIFICATE_VARIABLE: &str = "SSL_CERT_FILE";

/// Why jobs cannot be described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    #[error(transparent)]
    Unquotable(#[from] Unquotable),
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
    /// Instance types of nodes; may be empty.
    pub instance_types: Vec<InstanceType>,
    /// Time to fetch inputs and save results, added to the run time limit.
    pub staging_seconds: u64,
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
    /// Job directory on the submit machine, with the token file.
    pub dir: &'a Path,
}

impl Settings {
    /// Fails if a description cannot be written or contains `secret`; the error is for the admin,
    /// at the start.
    pub fn check(&self, secret: Option<&str>) -> Result<(), DescriptionError> {
        let params = DescriptionParams {
            instance_id: "",
            avoid: &[],
            requested: RequestedKinds::ALL,
            max_starts: MaxStarts(1),
            event_log: Path::new("/"),
        };
        let lines = self.lines(&params)?;
        let has_secret = |line: &&Line| secret.is_some_and(|secret| line.text.contains(secret));
        match lines.iter().find(has_secret) {
            None => Ok(()),
            Some(line) => Err(DescriptionError::HoldsToken(line.key())),
        }
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

    /// The row of one job.
    pub fn item_line(&self, job: &Item<'_>) -> Result<String, DescriptionError> {
        Ok(self.item_fields(job)?.join(","))
    }

    /// The fields of that row, one for each of [`field_names`].
    pub fn item_fields(&self, job: &Item<'_>) -> Result<Vec<String>, DescriptionError> {
        let mut fields = self.requested_fields(job.container, job.needs)?;
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
    ) -> Result<Vec<String>, DescriptionError> {
        let values = Values {
            container,
            needs,
            instance_type: name_for(&self.instance_types, needs)?,
        };
        let mut fields = Vec::new();
        for (letter, _) in TEMPLATE_MACROS {
            let value = match values.of(letter) {
                Substitution::Is(value) => value,
                Substitution::NotAsked | Substitution::Unknown => String::new(),
            };
            let is_used = letter != 'P' || self.admin_lines.use_partitions();
            let value = if is_used { value } else { String::new() };
            fields.push(quoting::item("what a container asks for", &value)?);
        }
        fields.push(needs.disk().div_ceil(KIB).max(1).to_string());
        let seconds = needs
            .max_run_time
            .unwrap_or(0)
            .saturating_add(self.staging_seconds);
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
        match needs.partitions.is_empty() || self.admin_lines.use_partitions() {
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
        let ours = [LEAVE_STOPPED, "--token-file", token, "$(ContainerName)"];
        words.extend(ours.map(quoting::with_macros));
        Ok(quoting::quoted_list(&words))
    }

    /// All lines before the items.
    pub fn lines(&self, params: &DescriptionParams<'_>) -> Result<Vec<Line>, Unquotable> {
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
            "notification = never".to_owned(),
        ];
        lines.extend(params.max_starts.lines(self.stop_grace_seconds));
        lines.push(requirements(params.avoid));
        if params.requested.run_time_limit {
            lines.push("allowed_execute_duration = $(JobSeconds)".to_owned());
        }
        if params.requested.gpus {
            // An empty expression sets no requirement.
            lines.push("require_gpus = $(JobGpuRule)".to_owned());
        }
        Ok(self.admin_lines.merge_over(lines, params.requested))
    }
}

/// The `queue` line before the items.
pub fn queue_statement() -> String {
    format!("queue {} from (", field_names().join(","))
}

#[cfg(test)]
mod tests {
    use dispatch_core::model::resources::GpuModel;

    use super::*;

    fn describe(settings: &Settings, needs: &ResourceRequest) -> Result<String, DescriptionError> {
        let params = DescriptionParams {
            instance_id: "me",
            avoid: &["n1.example".into(), "n2".into()],
            requested: RequestedKinds::of(needs),
            max_starts: MaxStarts(3),
            event_log: Path::new("/home/me too/jobs/events.log"),
        };
        let job = Item {
            container: &ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap(),
            attempt: &TokenUuid::parse("zzzzz-gj3su-000000000000000").unwrap(),
            needs,
            dir: Path::new("/home/me too/$(x)/1"),
        };
        settings.describe(&params, &[job, job])
    }

    fn settings(given: &[&str]) -> Settings {
        let mut lines = AdminLines::default();
        for line in given {
            lines.add("lines", line, RequestedKinds::NONE).unwrap();
        }
        Settings {
            crunch_run: vec!["/opt/crunch-run".into(), "--it's \"so\" $(x)".into()],
            admin_lines: lines,
            environment: BTreeMap::from([
                ("ARVADOS_API_HOST".into(), "api.example:443".into()),
                ("SSL_CERT_FILE".into(), "/etc/our ca.pem".into()),
            ]),
            staging_seconds: 3600,
            stop_grace_seconds: 60,
            ..Settings::default()
        }
    }

    #[test]
    fn a_description_says_everything_and_no_secret() {
        let needs = ResourceRequest {
            cpus: 2,
            ram: (1 << 30) + 1,
            scratch: 3000,
            max_run_time: Some(60),
            ..ResourceRequest::default()
        };
        let lines = ["+Group = \"a\"", "Requirements= HasIt || Other"];
        let text = describe(&settings(&lines), &needs).unwrap();
        for line in [
            "executable = /opt/crunch-run",
            r#"arguments = "'--it''s ""so"" $(DOLLAR)(x)' '--leave-stopped' '--token-file' 'token-$(AttemptName)' '$(ContainerName)'""#,
            r#"environment = "ARVADOS_API_HOST='api.example:443' SSL_CERT_FILE='/etc/our ca.pem'""#,
            "transfer_executable = false",
            "log = /home/me too/jobs/events.log",
            "transfer_input_files = $(JobDirectory)/token-$(AttemptName)",
            "job_lease_duration = 2400",
            "request_cpus = $(JobCpus)",
            "request_memory = $(JobMemory)",
            "request_disk = $(JobDisk)",
            "request_gpus = $(JobGpus)",
            "+ContainerUUID = \"$(ContainerName)\"",
            "+AttemptUUID = \"$(AttemptName)\"",
            "+ContainerDispatcher = \"me\"",
            "allowed_execute_duration = $(JobSeconds)",
            "zzzzz-dz642-queuedcontainer,2,1025,1,0,1,$(Nothing),$(Nothing),zzzzz-gj3su-000000000000000,3,3660,$(Nothing),/home/me too/$(DOLLAR)(x)/1",
            "+Group = \"a\"",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
        assert!(text.ends_with("/1\n)\n"), "{text}");
        // HTCondor would use the last of several requirements.
        let both = "requirements = (HasIt || Other) && (";
        let requirements = |l: &&str| l.to_ascii_lowercase().starts_with("requirements");
        let all: Vec<&str> = text.lines().filter(requirements).collect();
        assert!(all.len() == 1 && all[0].starts_with(both), "{all:?}");
    }

    #[test]
    fn where_nothing_is_shared_crunch_run_and_the_certificate_travel() {
        let settings = Settings {
            transfer_crunch_run: true,
            ..settings(&[])
        };
        let text = describe(&settings, &ResourceRequest::default()).unwrap();
        for line in [
            "transfer_executable = true",
            "transfer_input_files = $(JobDirectory)/token-$(AttemptName), /etc/our ca.pem",
            r#"environment = "ARVADOS_API_HOST='api.example:443' SSL_CERT_FILE='our ca.pem'""#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn a_container_cannot_write_into_the_description() {
        for partition in ["a b", "x\n)\nqueue 100", "$(HOME)", "\""] {
            let needs = ResourceRequest {
                partitions: vec![partition.to_owned()],
                ..ResourceRequest::default()
            };
            let error = describe(&settings(&["+Queue = \"%P\""]), &needs).unwrap_err();
            assert!(error.to_string().contains("letters"), "{error}");
        }
        // A partition that no line refers to need not be quotable.
        let odd = ResourceRequest {
            partitions: vec!["gpu/long".into()],
            ..ResourceRequest::default()
        };
        describe(&settings(&[]), &odd).unwrap();
        assert!(matches!(
            settings(&[]).fit_partitions(&odd),
            Admission::Never(_)
        ));
        let mapped = settings(&["+Queue = \"%P\""]);
        assert_eq!(mapped.fit_partitions(&odd), Admission::Now);
        let none = ResourceRequest::default();
        assert_eq!(settings(&[]).fit_partitions(&none), Admission::Now);
        let needs = ResourceRequest {
            partitions: vec!["a".into(), "b".into()],
            ..ResourceRequest::default()
        };
        let text = describe(&settings(&["+Queue = \"%P\""]), &needs).unwrap();
        assert!(text.contains(",a$(Comma)b,"), "{text}");
    }

    #[test]
    fn what_gpus_must_have_is_asked_for() {
        #[rustfmt::skip]
        let rows = [
            ("cuda", "12.4", &["8.0"][..], 4 << 30,
             "(GlobalMemoryMb?:4096)>=4096&&(Capability?:8.0)>=8.0&&(MaxSupportedVersion?:12040)>=12040"),
            ("cuda", "", &["10.0", "9.0", "sm_80"], 1, "(GlobalMemoryMb?:1)>=1&&(Capability?:9.0)>=9.0"),
            ("cuda", "11) || (true", &["9.0 || true"], 0, "$(Nothing)"),
            ("rocm", "6.1", &["gfx90a"], 0, "$(Nothing)"),
        ];
        for (stack, driver, targets, vram, expected) in rows {
            let needs = ResourceRequest {
                gpus: 1,
                gpu_stack: stack.into(),
                gpu_model: Some(Box::new(GpuModel {
                    driver_version: driver.into(),
                    hardware_target: targets.iter().map(|t| (*t).to_owned()).collect(),
                    vram,
                })),
                ..ResourceRequest::default()
            };
            let text = describe(&settings(&[]), &needs).unwrap();
            assert!(text.contains(&format!(",{expected},/home")), "{text}");
            let line = "require_gpus = $(JobGpuRule)";
            assert!(text.lines().any(|l| l == line), "{text}");
            let own = describe(&settings(&["require_gpus = true"]), &needs).unwrap();
            assert!(!own.lines().any(|l| l == line), "{own}");
        }
        let text = describe(&settings(&[]), &ResourceRequest::default()).unwrap();
        assert!(!text.contains("require_gpus"), "{text}");
    }
}

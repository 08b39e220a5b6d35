//! What condor_submit is told, as a submit description. Formats: condor_submit(1). No secret is in it: the token
//! travels as a transferred file.

use std::collections::BTreeMap;
use std::path::Path;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::token_name_of;
use dispatch_core::instance_types::{InstanceType, NoneSuits, name_for};
use dispatch_core::needs::Needs;
use dispatch_core::template::{Value, Values};

use crate::lines::{self, Asks, Line, Lines};
use crate::policy::{Starts, requirements};
use crate::quote::{self, Unwritable};

mod gpus;

/// The attribute of a job that names its container.
pub const CONTAINER: &str = "ContainerUUID";
/// The attribute of a job that names its attempt.
pub const ATTEMPT: &str = "AttemptUUID";
/// The attribute of a job that says which dispatcher of this user submitted it.
pub const DISPATCHER: &str = "ContainerDispatcher";
const KIB: u64 = 1 << 10;
/// Variable of jobs that names a file.
const CERTIFICATE: &str = "SSL_CERT_FILE";

/// Why a job cannot be described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// A text.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    /// There are kinds of nodes, and it fits none.
    #[error(transparent)]
    NoneSuits(#[from] NoneSuits),
    /// The dispatch token.
    #[error(
        "{0:?} in the submit description holds the dispatch token, and everybody may read job ads: each job has a token of its own"
    )]
    Secret(String),
}

/// What the admin set.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// crunch-run as on the execution nodes, an absolute path, and its arguments.
    pub crunch_run: Vec<String>,
    /// It is a file of this machine and travels with each job, and so does the certificate in [`Self::environment`].
    pub transfer: bool,
    /// A machine for what none of today can run may join.
    pub pool_grows: bool,
    /// Lines of every description, or of those of jobs that ask for something.
    pub lines: Lines,
    /// Variables of the jobs, none of them secret.
    pub environment: BTreeMap<String, String>,
    /// Kinds of nodes; none: there are no kinds.
    pub types: Vec<InstanceType>,
    /// Seconds for fetching inputs and saving results, on top of a run time limit.
    pub staging: u64,
    /// Seconds that crunch-run has to end when asked.
    pub grace: u64,
}

/// What all jobs of one description share.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// The dispatcher's.
    pub label: &'a str,
    /// Machines they must not run on.
    pub avoid: &'a [String],
    /// What they ask for.
    pub asks: Asks,
    /// How often each may be started.
    pub starts: Starts,
    /// Where HTCondor writes what becomes of them, an absolute path.
    pub log: &'a Path,
}

/// One job of a description.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// Its container.
    pub container: &'a ContainerUuid,
    /// Its attempt.
    pub attempt: &'a TokenUuid,
    /// What it needs.
    pub needs: &'a Needs,
    /// Its directory on the submit machine, with the token's file in it.
    pub dir: &'a Path,
}

/// Macros beside those of [`lines::MACROS`]: more fields of an item, of which the last takes the rest of the line,
/// whatever is in it, and two that a field may hold.
pub const MACROS: [&str; 7] = [
    "AttemptName",
    "JobDisk",
    "JobSeconds",
    "JobGpuRule",
    "JobDirectory",
    "Comma",
    "Nothing",
];

impl Settings {
    /// Whether jobs can be described without telling `secret`; the error is for the admin, at the start.
    pub fn check(&self, secret: Option<&str>) -> Result<(), DescriptionError> {
        let common = Common {
            label: "",
            avoid: &[],
            asks: Asks::ALL,
            starts: Starts(1),
            log: Path::new("/"),
        };
        let lines = self.lines(&common)?;
        let told = |line: &&Line| secret.is_some_and(|secret| line.text.contains(secret));
        match lines.iter().find(told) {
            None => Ok(()),
            Some(line) => Err(DescriptionError::Secret(line.key())),
        }
    }

    /// The description of jobs that differ in what has a name of its own here, and in nothing else.
    pub fn describe(
        &self,
        common: &Common<'_>,
        jobs: &[Item<'_>],
    ) -> Result<String, DescriptionError> {
        let lines = self.lines(common)?;
        let mut lines: Vec<String> = lines.into_iter().map(|line| line.text).collect();
        lines.push(queue());
        for job in jobs {
            lines.push(self.item(job)?);
        }
        lines.push(")".to_owned());
        Ok(lines.join("\n") + "\n")
    }

    /// What is of one job only.
    pub fn item(&self, job: &Item<'_>) -> Result<String, DescriptionError> {
        Ok(self.fields(job)?.join(","))
    }

    /// The same, a field for each of [`names`].
    pub fn fields(&self, job: &Item<'_>) -> Result<Vec<String>, DescriptionError> {
        let mut fields = self.asked(job.container, job.needs)?;
        fields.insert(lines::MACROS.len(), job.attempt.to_string());
        let dir = job.dir.to_string_lossy();
        fields.push(quote::listed_path("the job's directory", &dir)?);
        Ok(fields)
    }

    /// What the container asks for, as fields of its item.
    pub fn asked(
        &self,
        container: &ContainerUuid,
        needs: &Needs,
    ) -> Result<Vec<String>, DescriptionError> {
        let values = Values {
            container,
            needs,
            instance_type: name_for(&self.types, needs)?,
        };
        let mut fields = Vec::new();
        for (letter, _) in lines::MACROS {
            let value = match values.of(letter) {
                Value::Is(value) => value,
                Value::NotAsked | Value::Unknown => String::new(),
            };
            let is_used = letter != 'P' || self.lines.name_partitions();
            let value = if is_used { value } else { String::new() };
            fields.push(quote::item("what a container asks for", &value)?);
        }
        fields.push(needs.disk().div_ceil(KIB).max(1).to_string());
        let seconds = needs.max_run_time.unwrap_or(0).saturating_add(self.staging);
        fields.push(seconds.to_string());
        fields.push(match gpus::rule(needs) {
            none if none.is_empty() => quote::item("what its GPUs must have", "")?,
            // Of numbers only, and without a space, which would end the field.
            rule => rule,
        });
        Ok(fields)
    }

    /// What of the jobs' environment is a file that travels with them, and its name there.
    fn certificate(&self) -> Option<(&str, &str)> {
        let path = self
            .environment
            .get(CERTIFICATE)
            .filter(|_| self.transfer)?;
        Some((path, Path::new(path).file_name()?.to_str()?))
    }

    fn environment(&self) -> Result<String, Unwritable> {
        let here = self.certificate().map(|(_, name)| name);
        let variables = self.environment.iter().map(|(name, value)| {
            let value = here.filter(|_| name == CERTIFICATE).unwrap_or(value);
            quote::variable(name, value)
        });
        Ok(quote::list(&variables.collect::<Result<Vec<_>, _>>()?))
    }

    fn arguments(&self, token: &str) -> Result<String, Unwritable> {
        let theirs = self.crunch_run.iter().skip(1);
        let theirs = theirs.map(|word| quote::word("an argument of crunch-run", word));
        let mut words = theirs.collect::<Result<Vec<_>, _>>()?;
        // Relative: transferred into the job's own directory.
        words.extend(["--token-file", token, "$(ContainerName)"].map(quote::of_ours));
        Ok(quote::list(&words))
    }

    /// All but the items.
    pub fn lines(&self, common: &Common<'_>) -> Result<Vec<Line>, Unwritable> {
        let program = self.crunch_run.first().map_or("crunch-run", String::as_str);
        let token = token_name_of("$(AttemptName)");
        let mut files = format!("$(JobDirectory)/{token}");
        if let Some((path, _)) = self.certificate() {
            files += ", ";
            files += &quote::listed_path("the certificate's path", path)?;
        }
        let mut lines = vec![
            "universe = vanilla".to_owned(),
            format!(
                "executable = {}",
                quote::path("crunch-run's path", program)?
            ),
            format!("transfer_executable = {}", self.transfer),
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
                quote::path("the event log's path", &common.log.to_string_lossy())?
            ),
            "request_cpus = $(JobCpus)".to_owned(),
            "request_memory = $(JobMemory)".to_owned(),
            "request_disk = $(JobDisk)".to_owned(),
            "request_gpus = $(JobGpus)".to_owned(),
            format!("+{CONTAINER} = \"$(ContainerName)\""),
            format!("+{ATTEMPT} = \"$(AttemptName)\""),
            format!("+{DISPATCHER} = \"{}\"", common.label),
            "notification = never".to_owned(),
        ];
        lines.extend(common.starts.lines(self.grace));
        lines.push(requirements(common.avoid));
        if common.asks.limit {
            lines.push("allowed_execute_duration = $(JobSeconds)".to_owned());
        }
        if common.asks.gpus {
            // An empty one is none.
            lines.push("require_gpus = $(JobGpuRule)".to_owned());
        }
        Ok(self.lines.over(lines, common.asks))
    }
}

/// The macros that an item fills, in its order.
pub fn names() -> Vec<&'static str> {
    let filled = lines::MACROS.iter().map(|(_, name)| *name);
    filled.chain(MACROS.into_iter().take(5)).collect()
}

/// The line before the items.
pub fn queue() -> String {
    format!("queue {} from (", names().join(","))
}

#[cfg(test)]
mod tests {
    use dispatch_core::needs::GpuModel;

    use super::*;

    fn describe(settings: &Settings, needs: &Needs) -> Result<String, DescriptionError> {
        let common = Common {
            label: "me",
            avoid: &["n1.example".into(), "n2".into()],
            asks: Asks::of(needs),
            starts: Starts(3),
            log: Path::new("/home/me too/jobs/events.log"),
        };
        let job = Item {
            container: &ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap(),
            attempt: &TokenUuid::parse("zzzzz-gj3su-000000000000000").unwrap(),
            needs,
            dir: Path::new("/home/me too/$(x)/1"),
        };
        settings.describe(&common, &[job, job])
    }

    fn settings(given: &[&str]) -> Settings {
        let mut lines = Lines::default();
        for line in given {
            lines.add("lines", line, false).unwrap();
        }
        Settings {
            crunch_run: vec!["/opt/crunch-run".into(), "--it's \"so\" $(x)".into()],
            lines,
            environment: BTreeMap::from([
                ("ARVADOS_API_HOST".into(), "api.example:443".into()),
                ("SSL_CERT_FILE".into(), "/etc/our ca.pem".into()),
            ]),
            staging: 3600,
            grace: 60,
            ..Settings::default()
        }
    }

    #[test]
    fn a_description_says_everything_and_no_secret() {
        let needs = Needs {
            cpus: 2,
            ram: (1 << 30) + 1,
            scratch: 3000,
            max_run_time: Some(60),
            ..Needs::default()
        };
        let lines = ["+Group = \"a\"", "Requirements= HasIt || Other"];
        let text = describe(&settings(&lines), &needs).unwrap();
        for line in [
            "executable = /opt/crunch-run",
            r#"arguments = "'--it''s ""so"" $(DOLLAR)(x)' '--token-file' 'token-$(AttemptName)' '$(ContainerName)'""#,
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
        // Of several such lines HTCondor would take the last.
        let both = "requirements = (HasIt || Other) && (";
        let requirements = |l: &&str| l.to_ascii_lowercase().starts_with("requirements");
        let all: Vec<&str> = text.lines().filter(requirements).collect();
        assert!(all.len() == 1 && all[0].starts_with(both), "{all:?}");
    }

    #[test]
    fn where_nothing_is_shared_crunch_run_and_the_certificate_travel() {
        let settings = Settings {
            transfer: true,
            ..settings(&[])
        };
        let text = describe(&settings, &Needs::default()).unwrap();
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
            let needs = Needs {
                partitions: vec![partition.to_owned()],
                ..Needs::default()
            };
            let error = describe(&settings(&["+Queue = \"%P\""]), &needs).unwrap_err();
            assert!(error.to_string().contains("letters"), "{error}");
        }
        // A name that no line holds stands in nobody's way.
        let odd = Needs {
            partitions: vec!["gpu/long".into()],
            ..Needs::default()
        };
        describe(&settings(&[]), &odd).unwrap();
        let needs = Needs {
            partitions: vec!["a".into(), "b".into()],
            ..Needs::default()
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
            let needs = Needs {
                gpus: 1,
                gpu_stack: stack.into(),
                gpu_model: Some(Box::new(GpuModel {
                    driver_version: driver.into(),
                    hardware_target: targets.iter().map(|t| (*t).to_owned()).collect(),
                    vram,
                })),
                ..Needs::default()
            };
            let text = describe(&settings(&[]), &needs).unwrap();
            assert!(text.contains(&format!(",{expected},/home")), "{text}");
            let line = "require_gpus = $(JobGpuRule)";
            assert!(text.lines().any(|l| l == line), "{text}");
            let own = describe(&settings(&["require_gpus = true"]), &needs).unwrap();
            assert!(!own.lines().any(|l| l == line), "{own}");
        }
        let text = describe(&settings(&[]), &Needs::default()).unwrap();
        assert!(!text.contains("require_gpus"), "{text}");
    }
}

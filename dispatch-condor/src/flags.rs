//! What dispatch-condor can be told on its command line, and by the configuration file in its place.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use dispatch_core::config::{self, Config, Given, list, one};
use dispatch_core::dry_run::speaks_of_a_secret;
use dispatch_core::{errand, manual, program};

use crate::lines::{Lines, is_token};
use crate::quote;
use crate::submission::Settings;

const CRUNCH_RUN: &str = "/usr/bin/crunch-run";
/// Where a job finds engines: HTCondor gives it no PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Hands the containers of an Arvados-style queue to HTCondor, one job each.
///
/// Run it as an ordinary user that may submit jobs. SIGTERM stops taking containers and leaves jobs alone; the next
/// dispatch-condor of the same --job-dir takes them up again.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true, after_help = manual::HELP)]
pub struct Flags {
    /// Directory on this machine for each job's output and, in a file of mode 0600, its token
    #[arg(long, value_name = "DIR")]
    pub job_dir: PathBuf,
    #[command(flatten)]
    pub file: config::Flag,
    /// crunch-run as on the execution nodes: an absolute path, and arguments, quoted like for a shell
    #[arg(long, value_name = "COMMAND", default_value = CRUNCH_RUN)]
    pub crunch_run: String,
    /// crunch-run is on this machine only: send it with each job, and the certificate that SSL_CERT_FILE names
    #[arg(long)]
    pub transfer_crunch_run: bool,
    /// Line for every submit description, like '+Project = "x"', with %U %C %M %T %G %W %P %I; may be given several times
    #[arg(long = "submit-line", value_name = "LINE", allow_hyphen_values = true)]
    pub lines: Vec<String>,
    /// Line for containers that ask for GPUs
    #[arg(
        long = "gpu-submit-line",
        value_name = "LINE",
        allow_hyphen_values = true
    )]
    pub gpu_lines: Vec<String>,
    /// Group that jobs are charged to
    #[arg(long, value_name = "GROUP", default_value = "")]
    pub accounting_group: String,
    /// User of that group
    #[arg(long, value_name = "NAME", default_value = "")]
    pub accounting_group_user: String,
    /// What each job takes of what the pool counts, like licence:2
    #[arg(long, value_name = "LIMITS", default_value = "")]
    pub concurrency_limits: String,
    /// Which machines will do, as a ClassAd expression
    #[arg(
        long,
        value_name = "EXPRESSION",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub requirements: String,
    /// Which of them are best, as a ClassAd expression
    #[arg(
        long,
        value_name = "EXPRESSION",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub rank: String,
    /// Machines join the pool when jobs wait for them: what no slot of today could run is submitted all the same
    #[arg(long)]
    pub pool_grows: bool,
    /// Time for fetching inputs and saving results, on top of a container's run time limit
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = program::time)]
    pub staging_allowance: Duration,
    #[command(flatten)]
    pub errands: errand::Flags,
    #[command(flatten)]
    pub common: program::Flags,
}

impl Flags {
    /// What the admin set, checked.
    pub fn settings(&self) -> Result<Settings, Box<dyn Error + Send + Sync>> {
        let config = self.common.config.as_deref();
        let mut environment = self.common.job_environment();
        let condor = config.map(|config| &config.cluster.containers.condor);
        let more = condor.and_then(|condor| condor.environment_variables.clone());
        for (name, value) in more.unwrap_or_default() {
            let is_path = name.ends_with("_FILE") || name.ends_with("_PATH");
            if is_token(&value) || (speaks_of_a_secret(&name) && !is_path) {
                return Err(format!(
                    "take {name} out of Containers.Condor.EnvironmentVariables: everybody may read the environment of jobs"
                )
                .into());
            }
            environment.insert(name, value);
        }
        environment.remove(config::SAMPLE);
        environment.entry("PATH".into()).or_insert(PATH.into());
        let crunch_run = shlex::split(&self.crunch_run)
            .filter(|words| words.first().is_some_and(|path| Path::new(path).is_absolute()))
            .ok_or_else(|| {
                format!(
                    "--crunch-run (CrunchRunCommand) {:?} does not begin with an absolute path: HTCondor starts it in a directory of its own",
                    self.crunch_run
                )
            })?;
        if crunch_run.iter().any(|word| is_token(word)) {
            return Err("take the token out of --crunch-run: each job has a token of its own, and everybody may read the arguments of jobs".into());
        }
        let settings = Settings {
            crunch_run,
            transfer: self.transfer_crunch_run,
            pool_grows: self.pool_grows,
            lines: self.submit_lines()?,
            environment,
            types: config.map(Config::instance_types).unwrap_or_default(),
            staging: self.staging_allowance.as_secs(),
            grace: self.common.stop_grace.as_secs(),
        };
        for kind in &settings.types {
            quote::item("an instance type", &kind.name)?;
        }
        let directory = std::path::absolute(&self.job_dir)?;
        quote::listed_path("--job-dir", &directory.to_string_lossy())?;
        let token = program::endpoint(&self.common).map(|endpoint| endpoint.token);
        let token = token.as_ref().map(|token| secret_of(token.expose()));
        settings.check(token.ok().flatten())?;
        Ok(settings)
    }

    fn submit_lines(&self) -> Result<Lines, crate::lines::LineError> {
        let mut lines = Lines::default();
        for (flag, key, value) in [
            (
                "accounting_group",
                "accounting_group",
                &self.accounting_group,
            ),
            (
                "accounting_group_user",
                "accounting_group_user",
                &self.accounting_group_user,
            ),
            (
                "concurrency_limits",
                "concurrency_limits",
                &self.concurrency_limits,
            ),
            ("requirements", "requirements", &self.requirements),
            ("rank", "rank", &self.rank),
        ] {
            lines.set(flag, key, value)?;
        }
        for line in &self.lines {
            lines.add("lines", line, false)?;
        }
        for line in &self.gpu_lines {
            lines.add("gpu_lines", line, true)?;
        }
        Ok(lines)
    }
}

/// The part of a token that nobody may know; none where it is too short to be told from other words.
fn secret_of(token: &str) -> Option<&str> {
    const SHORTEST: usize = 16;
    let secret = token.rsplit('/').next();
    secret.filter(|secret| secret.len() >= SHORTEST)
}

/// What the configuration file says, by our flags.
pub fn given(config: &Config) -> Vec<Given> {
    let condor = config.cluster.containers.condor.clone();
    let transfer = condor.transfer_crunch_run.map(|yes| yes.to_string());
    let grows = condor.pool_grows.map(|yes| yes.to_string());
    #[rustfmt::skip]
    let ours = [
        list("lines", "Containers.Condor.SubmitLines", condor.submit_lines),
        list("gpu_lines", "Containers.Condor.GPUSubmitLines", condor.gpu_submit_lines),
        one("accounting_group", "Containers.Condor.AccountingGroup", condor.accounting_group),
        one("accounting_group_user", "Containers.Condor.AccountingGroupUser", condor.accounting_group_user),
        one("concurrency_limits", "Containers.Condor.ConcurrencyLimits", condor.concurrency_limits),
        one("requirements", "Containers.Condor.Requirements", condor.requirements),
        one("rank", "Containers.Condor.Rank", condor.rank),
        one("transfer_crunch_run", "Containers.Condor.TransferCrunchRun", transfer),
        one("pool_grows", "Containers.Condor.PoolGrows", grows),
        config.crunch_run(CRUNCH_RUN),
    ];
    ours.into_iter().flatten().chain(config.common()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use clap::CommandFactory;
    use dispatch_core::config::parse;

    use super::*;
    use crate::lines::Asks;

    #[test]
    fn the_flags_are_well_formed() {
        Flags::command().debug_assert();
    }

    const TOKEN: &str = "thedispatchtokenitself";

    fn settings(condor: &str, more: &[&str]) -> Result<Vec<String>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "Clusters: {{zzzzz: {{SystemRootToken: {TOKEN}, Services: {{Controller: {{ExternalURL: 'https://x/'}}}},
              Containers: {{CrunchRunCommand: /x, Condor: {{{condor}}}}}}}}}"
        );
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let words = ["x", "--job-dir", "/jobs", "--config", path];
        let words = words.iter().chain(more).map(std::ffi::OsString::from);
        let (mut flags, _, config) = parse::<Flags>(words, given).map_err(|e| e.to_string())?;
        flags.common.config = config.map(Into::into);
        let settings = flags.settings().map_err(|error| error.to_string())?;
        let asks = Asks {
            gpus: true,
            ..Asks::default()
        };
        let lines = settings.lines.over(Vec::new(), asks).into_iter();
        let transfer = settings.transfer.then(|| "transfer".to_owned());
        Ok(lines.map(|line| line.text).chain(transfer).collect())
    }

    #[test]
    fn the_file_says_what_flags_say_and_a_flag_beats_it() {
        let file = "SubmitLines: ['+A = 1', '+B = 2'], GPUSubmitLines: ['+G = %G'], AccountingGroup: lab,
            ConcurrencyLimits: 'licence:2', Requirements: HasX, Rank: Memory, TransferCrunchRun: true";
        assert_eq!(
            settings(file, &["--rank=Cpus", "--submit-line=+C = 3"]).unwrap(),
            [
                "accounting_group = lab",
                "concurrency_limits = licence:2",
                "requirements = HasX",
                "rank = Cpus",
                "+C = 3",
                "+G = $(JobGpus)",
                "transfer",
            ]
        );
        assert!(settings("", &[]).unwrap().is_empty());
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_name() {
        #[rustfmt::skip]
        let rows = [
            ("EnvironmentVariables: {S3_SECRET: x}", &[][..], "S3_SECRET"),
            ("EnvironmentVariables: {X: v2/zzzzz-gj3su-000000000000000/x}", &[], "take X out"),
            ("EnvironmentVariables: {X: thedispatchtokenitself}", &[], "\"environment\" in the submit description holds the dispatch token"),
            ("GPUSubmitLines: ['+X = \"thedispatchtokenitself\"']", &[], "holds the dispatch token"),
            ("", &["--crunch-run=/x --token=thedispatchtokenitself"], "holds the dispatch token"),
            ("EnvironmentVariables: {X: 'a$$b'}", &[], "$$"),
            ("SubmitLines: ['universe = docker']", &[], "universe = docker"),
            ("Rank: '%Z'", &[], "%Z"),
            ("", &["--crunch-run=crunch-run"], "absolute path"),
            ("", &["--crunch-run=/x v2/zzzzz-gj3su-000000000000000/x"], "take the token out"),
            ("", &["--job-dir=/a,b"], "--job-dir"),
        ];
        for (file, more, words) in rows {
            let error = settings(file, more).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(settings("EnvironmentVariables: {AWS_CREDENTIALS_FILE: /x}", &[]).is_ok());
    }
}

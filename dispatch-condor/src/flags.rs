//! The flags of dispatch-condor, their defaults from the configuration file, and the checked
//! [`Settings`] that follow.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Parser;
use dispatch_core::config::{self, Config, FileDefault, Form, Key};
use dispatch_core::model::staging_allowance::StagingAllowance;
use dispatch_core::scheduler::owner_map::OwnerMap;
use dispatch_core::service::subcommands::dry_run::looks_secret;
use dispatch_core::service::{self, man_page, subcommands};

use crate::submit::admin_lines::{AdminLines, RequestedKinds};
use crate::submit::description::Settings;
use crate::submit::quoting;
use crate::submit::reserved_keys::contains_token;

const DEFAULT_CRUNCH_RUN: &str = "/usr/bin/crunch-run";
/// PATH of jobs, to find container engines: HTCondor sets none.
const DEFAULT_JOB_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Run the containers of an Arvados-style queue as HTCondor jobs, one job each
///
/// Run it as an ordinary user that may submit jobs. SIGTERM stops the dispatcher and leaves its
/// jobs alone; the next dispatch-condor with the same --state-dir takes them over.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true, after_help = man_page::help())]
pub struct Flags {
    /// Directory on this machine for job output and token files (mode 0600)
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    #[command(flatten)]
    pub file: config::Flag,
    /// Command that starts crunch-run on the nodes: an absolute path and arguments, quoted as in a
    /// shell
    #[arg(long, value_name = "COMMAND", default_value = DEFAULT_CRUNCH_RUN)]
    pub crunch_run: String,
    /// Transfer crunch-run, and the certificate that SSL_CERT_FILE names, from this machine with
    /// each job
    #[arg(long)]
    pub transfer_crunch_run: bool,
    /// Line of every submit description, a template with %U %C %M %T %G %W %P %I %u %g,
    /// like '+Project = "x"'; may be given several times
    #[arg(long = "submit-line", value_name = "LINE", allow_hyphen_values = true)]
    pub lines: Vec<String>,
    /// Line of the submit descriptions of containers that request GPUs, a template; may be given
    /// several times
    #[arg(
        long = "gpu-submit-line",
        value_name = "LINE",
        allow_hyphen_values = true
    )]
    pub gpu_lines: Vec<String>,
    /// Line of the submit descriptions of preemptible containers, a template; may be given several
    /// times
    #[arg(
        long = "preemptible-submit-line",
        value_name = "LINE",
        allow_hyphen_values = true
    )]
    pub preemptible_lines: Vec<String>,
    /// File that maps users and projects to submit lines, such as an accounting group; read again
    /// when it changes
    #[arg(long, value_name = "FILE")]
    pub owner_map: Option<PathBuf>,
    /// Accounting group that jobs are charged to
    #[arg(long, value_name = "GROUP", default_value = "")]
    pub accounting_group: String,
    /// User within the accounting group that jobs are charged to
    #[arg(long, value_name = "NAME", default_value = "")]
    pub accounting_group_user: String,
    /// Concurrency limits of the pool that each job uses, like licence:2
    #[arg(long, value_name = "LIMITS", default_value = "")]
    pub concurrency_limits: String,
    /// ClassAd requirements expression: jobs run only on machines that meet it
    #[arg(
        long,
        value_name = "EXPRESSION",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub requirements: String,
    /// ClassAd rank expression: HTCondor prefers machines with higher values
    #[arg(
        long,
        value_name = "EXPRESSION",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub rank: String,
    /// Submit jobs even if no current slot fits them, because the pool grows on demand
    #[arg(long)]
    pub pool_grows: bool,
    /// Time to fetch inputs and save results, added to the run time limit of a container; auto is
    /// 5 minutes, the limit once more and half a minute per GiB of disk, at most 60 minutes
    #[arg(long, value_name = "TIME", default_value = "auto")]
    pub staging_allowance: StagingAllowance,
    #[command(flatten)]
    pub subcommands: subcommands::Flags,
    #[command(flatten)]
    pub common: service::Flags,
}

impl Flags {
    /// The settings of the flags, checked; the error is for the admin.
    pub fn settings(&self) -> Result<Settings, Box<dyn Error + Send + Sync>> {
        let config = self.common.config.as_deref();
        let mut environment = self.common.job_environment();
        let more = config.map(|config| config.map(ENVIRONMENT_KEY));
        for (name, value) in more.unwrap_or_default() {
            let is_path = name.ends_with("_FILE") || name.ends_with("_PATH");
            if contains_token(&value) || (looks_secret(&name) && !is_path) {
                return Err(format!(
                    "take {name} out of {ENVIRONMENT_KEY}: the environment of jobs is public"
                )
                .into());
            }
            environment.insert(name, value);
        }
        environment
            .entry("PATH".into())
            .or_insert(DEFAULT_JOB_PATH.into());
        let crunch_run = shlex::split(&self.crunch_run)
            .filter(|words| words.first().is_some_and(|path| Path::new(path).is_absolute()))
            .ok_or_else(|| {
                format!(
                    "--crunch-run (CrunchRunCommand) {:?} does not begin with an absolute path: HTCondor starts it in a directory of its own",
                    self.crunch_run
                )
            })?;
        if crunch_run.iter().any(|word| contains_token(word)) {
            return Err("take the token out of --crunch-run: each job has a token of its own, and the arguments of jobs are public".into());
        }
        let settings = Settings {
            crunch_run,
            transfer_crunch_run: self.transfer_crunch_run,
            pool_grows: self.pool_grows,
            admin_lines: self.submit_lines()?,
            owner_map: OwnerMap::for_command(
                self.owner_map.as_deref(),
                check_line,
                self.subcommands.works_without_owner_map(),
            )?,
            environment,
            instance_types: config.map(Config::instance_types).unwrap_or_default(),
            staging: self.staging_allowance,
            stop_grace_seconds: self.common.stop_grace.as_secs(),
        };
        for kind in &settings.instance_types {
            quoting::item("an instance type", &kind.name)?;
        }
        let directory = std::path::absolute(&self.state_dir)?;
        quoting::path_in_list("--state-dir", &directory.to_string_lossy())?;
        let token = service::endpoint(&self.common).map(|endpoint| endpoint.token);
        let token = token.as_ref().map(|token| secret_part(token.expose()));
        settings.check(token.ok().flatten())?;
        Ok(settings)
    }

    fn submit_lines(&self) -> Result<AdminLines, crate::submit::admin_lines::LineError> {
        let mut lines = AdminLines::default();
        for (key, value) in [
            ("accounting_group", &self.accounting_group),
            ("accounting_group_user", &self.accounting_group_user),
            ("concurrency_limits", &self.concurrency_limits),
            ("requirements", &self.requirements),
            ("rank", &self.rank),
        ] {
            lines.add_setting(key, key, value)?;
        }
        for line in &self.lines {
            lines.add("lines", line, RequestedKinds::NONE)?;
        }
        for line in &self.gpu_lines {
            lines.add("gpu_lines", line, RequestedKinds::GPUS)?;
        }
        for line in &self.preemptible_lines {
            lines.add("preemptible_lines", line, RequestedKinds::PREEMPTIBLE)?;
        }
        Ok(lines)
    }
}

/// Checks a line of the owner map; the error is for the admin.
pub fn check_line(template: &str) -> Result<(), String> {
    let mut lines = AdminLines::default();
    let checked = lines.add("owner_map", template, RequestedKinds::NONE);
    checked.map_err(|error| error.to_string())
}

/// The secret part of a token; none if it is too short to be distinguished from other words.
fn secret_part(token: &str) -> Option<&str> {
    const MIN_SECRET_LENGTH: usize = 16;
    let secret = token.rsplit('/').next();
    secret.filter(|secret| secret.len() >= MIN_SECRET_LENGTH)
}

/// The keys of the configuration file that dispatch-condor reads besides the common ones.
#[rustfmt::skip]
pub const KEYS: [Key; 13] = [
    Key::new("Containers.Condor.SubmitLines", "lines", Form::List),
    Key::new("Containers.Condor.GPUSubmitLines", "gpu_lines", Form::List),
    Key::new("Containers.Condor.PreemptibleSubmitLines", "preemptible_lines", Form::List),
    Key::new("Containers.Condor.OwnerMap", "owner_map", Form::Text),
    Key::new("Containers.Condor.AccountingGroup", "accounting_group", Form::Text),
    Key::new("Containers.Condor.AccountingGroupUser", "accounting_group_user", Form::Text),
    Key::new("Containers.Condor.ConcurrencyLimits", "concurrency_limits", Form::Text),
    Key::new("Containers.Condor.Requirements", "requirements", Form::Text),
    Key::new("Containers.Condor.Rank", "rank", Form::Text),
    Key::new("Containers.Condor.TransferCrunchRun", "transfer_crunch_run", Form::Switch),
    Key::new("Containers.Condor.PoolGrows", "pool_grows", Form::Switch),
    Key::new(ENVIRONMENT_KEY, "", Form::Map),
    Key::new("Containers.StagingAllowance", "staging_allowance", Form::Text),
];
/// The environment of jobs.
const ENVIRONMENT_KEY: &str = "Containers.Condor.EnvironmentVariables";

/// The default of `--crunch-run` in the configuration file.
pub fn crunch_run_default(config: &Config) -> Vec<FileDefault> {
    config.crunch_run(DEFAULT_CRUNCH_RUN).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use clap::CommandFactory;
    use dispatch_core::config::parse;

    use super::*;

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
        let words = ["x", "--state-dir", "/jobs", "--config", path];
        let words = words.iter().chain(more).map(std::ffi::OsString::from);
        let (mut flags, _, config) =
            parse::<Flags>(words, &KEYS, crunch_run_default).map_err(|e| e.to_string())?;
        flags.common.config = config.map(Into::into);
        let settings = flags.settings().map_err(|error| error.to_string())?;
        let asks = RequestedKinds::GPUS;
        let lines = settings
            .admin_lines
            .merge_over(Vec::new(), asks)
            .into_iter();
        let transfer = settings.transfer_crunch_run.then(|| "transfer".to_owned());
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
            ("EnvironmentVariables: {X: thedispatchtokenitself}", &[], "\"environment\" in the submit description contains the dispatch token"),
            ("GPUSubmitLines: ['+X = \"thedispatchtokenitself\"']", &[], "contains the dispatch token"),
            ("", &["--crunch-run=/x --token=thedispatchtokenitself"], "contains the dispatch token"),
            ("EnvironmentVariables: {X: 'a$$b'}", &[], "$$"),
            ("SubmitLines: ['universe = docker']", &[], "universe = docker"),
            ("Rank: '%Z'", &[], "%Z"),
            ("", &["--crunch-run=crunch-run"], "absolute path"),
            ("", &["--crunch-run=/x v2/zzzzz-gj3su-000000000000000/x"], "take the token out"),
            ("", &["--state-dir=/a,b"], "--state-dir"),
        ];
        for (file, more, words) in rows {
            let error = settings(file, more).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let owners = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(owners.path(), "* '+X=\"thedispatchtokenitself\"'\n").unwrap();
        let flag = format!("--owner-map={}", owners.path().display());
        let error = settings("", &[&flag]).unwrap_err();
        assert!(
            error.contains("line of *") && error.contains("dispatch token"),
            "{error}"
        );
        assert!(!error.contains("itself"), "{error}");
        assert!(settings("EnvironmentVariables: {AWS_CREDENTIALS_FILE: /x}", &[]).is_ok());
    }
}

//! The command line of a run: crunch-run's flags and those of upstream's crunch-run, which
//! schedulers' configurations use.

mod choices;
mod node;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use arvados_client::ContainerUuid;
use clap::{ArgAction, Parser};
use container_engine::GpuStack;

pub use self::choices::{EngineChoice, GatewayChoice, MountMethod, Networking, UserNamespaces};
pub use self::node::{CacheDir, CacheLimits, NodeFlags};

/// Text below the flags in `--help`; `crunch_contract::ExitCode` defines the codes.
const EXIT_STATUS: &str = "\
Exit status:
  0   the record has its final state
  75  the command never ran; the container may run on another node
  76  another attempt has the container
  77  the command ran; its results are on this node and not delivered
  78  the flags or the environment are wrong

After 77, `crunch-run resume DIR` on the same node delivers what is in the job directory.

Signals:
  TERM, INT  stop the container; a second signal skips the grace period
  XCPU       stop the container because the job's time limit is near
  USR1       save the logs now
  USR2       the node will be taken away: warn the user and save the logs";

/// Text below the flags of a command in `--help`.
pub(crate) fn after_help(exit_status: &str) -> String {
    format!("{exit_status}\n\n{}", units::HELP)
}

/// Runs one container of the queue: fetches its inputs and image, runs it, and reports state, logs
/// and output.
///
/// A dispatcher locks the container and starts this program on the node. The token of the attempt
/// is in a private file or in ARVADOS_API_TOKEN. ARVADOS_API_HOST, ARVADOS_API_HOST_INSECURE and
/// SSL_CERT_FILE name the API server.
#[derive(Debug, Parser)]
#[command(name = "crunch-run", version, after_long_help = after_help(EXIT_STATUS), args_override_self = true)]
pub struct Flags {
    /// UUID of the container to run
    #[arg(value_name = "UUID")]
    pub uuid: ContainerUuid,

    /// Start in the background, print {"UUID":…,"PID":…} and return
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL", hide_possible_values = true)]
    pub detach: bool,

    /// Read environment variables from stdin, as JSON {"Env": {…}} with ARVADOS_API_TOKEN
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL", hide_possible_values = true)]
    pub stdin_config: bool,

    /// Directory for logs and files of this attempt [default: a new one in TMPDIR, removed at the
    /// end]
    #[arg(long, value_name = "DIR")]
    pub job_dir: Option<PathBuf>,

    /// File with the token of this attempt [default: ARVADOS_API_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    #[command(flatten)]
    pub node: NodeFlags,

    /// Method by which the container reads files of collections
    #[arg(long, value_enum, default_value_t = MountMethod::Copy, value_name = "METHOD")]
    pub mount_method: MountMethod,

    /// When a container gets the node's network: if it requests the API, or always
    #[arg(long, value_enum, default_value_t = Networking::Default, value_name = "WHEN")]
    pub container_enable_networking: Networking,

    /// When root's containers of the engines builtin and oci get users that no person and no
    /// service of the node has
    #[arg(long, value_enum, default_value_t = UserNamespaces::Auto, value_name = "WHEN")]
    pub userns: UserNamespaces,

    /// CPUs that the container may use, like 0,2-3
    #[arg(long, value_name = "LIST")]
    pub cpuset: Option<String>,

    /// Kind of the GPUs in --gpu-ids
    #[arg(long, value_enum, value_name = "STACK", requires = "gpu_ids")]
    pub gpu_stack: Option<GpuStack>,

    /// GPUs that the scheduler granted [default: from CUDA_VISIBLE_DEVICES and similar variables]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub gpu_ids: Vec<String>,

    /// Limit the memory of the container to its request
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL", hide_possible_values = true)]
    pub enable_memory_limit: bool,

    /// Interval between two samples of resource use
    #[arg(long, value_parser = units::parse_duration, default_value = "10s", value_name = "TIME")]
    pub crunchstat_interval: Duration,

    /// Time between TERM and KILL when the container is stopped
    #[arg(long, value_parser = units::parse_duration, default_value = "10s", value_name = "TIME")]
    pub stop_grace: Duration,

    /// Leave two kinds of end to the dispatcher that started this, and exit 79: a signal stops the
    /// command, or the container cannot succeed and the server would run it again. Without this
    /// flag the record becomes Cancelled
    #[arg(long)]
    pub leave_to_dispatcher: bool,

    /// Kill the container this long after its maximum run time plus --stop-grace, even if
    /// crunch-run itself hangs
    #[arg(long, value_parser = units::parse_duration, default_value = "5m", value_name = "TIME")]
    pub kill_after: Duration,

    /// Time for which delivery of results is retried while the API server or Keep does not respond
    #[arg(long, value_parser = units::parse_duration, default_value = "10m", value_name = "TIME")]
    pub delivery_timeout: Duration,

    /// Directory for undelivered results when --job-dir is not given [default:
    /// /var/tmp/crunch-run-undelivered-UID in an HTCondor job, which removes TMPDIR; otherwise they
    /// stay in the job directory]
    #[arg(long, value_name = "DIR")]
    pub undelivered_dir: Option<PathBuf>,

    /// Limit on the CPU time of the container
    #[arg(long, value_parser = units::parse_duration, value_name = "TIME")]
    pub cpu_time_limit: Option<Duration>,

    /// Limit on the number of processes and threads of the container [default: 15 % of what the
    /// kernel can have, at most 32768]
    #[arg(long, value_name = "N")]
    pub pids_limit: Option<u64>,

    /// Limit on disk space used by the attempt, output included
    #[arg(long, value_parser = units::parse_size, value_name = "SIZE")]
    pub scratch_limit: Option<u64>,

    /// Limit on the number of files and directories of the attempt
    #[arg(long, value_name = "N")]
    pub scratch_inodes: Option<u64>,

    /// Maximum size of an output that is saved
    #[arg(long, value_parser = units::parse_size, value_name = "SIZE")]
    pub output_limit: Option<u64>,

    /// Maximum size of the stdout log, and of the stderr log
    #[arg(long, value_parser = units::parse_size, default_value = "256MiB", value_name = "SIZE")]
    pub log_limit: u64,

    /// Whether an entry of the output that cannot be saved, such as a link that leads nowhere,
    /// costs the whole output, as with upstream's crunch-run; otherwise it is left out with a
    /// warning [default: as the API server announces; true with a real Arvados]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true)]
    pub strict_output: Option<bool>,

    /// Interval at which the log of a running container is saved
    #[arg(long, value_parser = units::parse_duration, default_value = "30m", value_name = "TIME")]
    pub log_update_period: Duration,

    /// Growth of the log that causes a save before --log-update-period has passed
    #[arg(long, value_parser = units::parse_size, default_value = "32MiB", value_name = "SIZE")]
    pub log_update_size: u64,

    /// Serve the log of a running container to users who may read it, through the API server
    #[arg(long, value_enum, default_value_t = GatewayChoice::Auto, value_name = "WHEN")]
    pub container_gateway: GatewayChoice,

    /// Program to run when this node is broken, with the reason as its argument
    #[arg(long, value_name = "FILE")]
    pub broken_node_hook: Option<PathBuf>,

    /// File to which the reason is written when this node is broken and --broken-node-hook is not
    /// given
    #[arg(
        long,
        default_value = "/var/lock/crunch-run-broken",
        value_name = "FILE"
    )]
    pub broken_node_marker: PathBuf,

    /// Run no container: check this node as `crunch-run check` does with the same flags, and print
    /// one line of JSON. The token is not read. The exit status is 0, whatever is found
    #[arg(long)]
    pub check: bool,

    /// This process is the worker in the background; its stdin is the lock
    #[arg(long, hide = true)]
    pub worker: bool,

    /// The gateway secret is on stdin
    #[arg(long, hide = true)]
    pub gateway_secret_stdin: bool,

    #[command(flatten)]
    pub obsolete: Obsolete,
}

/// Flags of upstream's crunch-run that have no effect here.
#[derive(Debug, Default, clap::Args)]
pub struct Obsolete {
    #[arg(long, hide = true)]
    cgroup_root: Option<OsString>,
    #[arg(long, hide = true)]
    cgroup_parent: Option<OsString>,
    #[arg(long, hide = true)]
    cgroup_parent_subsystem: Option<OsString>,
    #[arg(long, hide = true)]
    check_containerd: Option<OsString>,
    #[arg(long, hide = true)]
    container_network_mode: Option<OsString>,
    #[arg(long, hide = true)]
    memprofile: Option<OsString>,
    #[arg(long, hide = true)]
    config: Option<OsString>,
    #[arg(long, hide = true)]
    sleep: Option<OsString>,
    #[arg(long, hide = true)]
    no_detach: bool,
}

impl Obsolete {
    /// One sentence for each given flag.
    pub fn notes(&self) -> Vec<String> {
        [
            ("cgroup-root", &self.cgroup_root),
            ("cgroup-parent", &self.cgroup_parent),
            ("cgroup-parent-subsystem", &self.cgroup_parent_subsystem),
            ("check-containerd", &self.check_containerd),
            ("container-network-mode", &self.container_network_mode),
            ("memprofile", &self.memprofile),
            ("config", &self.config),
            ("sleep", &self.sleep),
        ]
        .into_iter()
        .filter(|(_, given)| given.is_some())
        .map(|(name, _)| format!("flag --{name} is obsolete and does nothing here"))
        .collect()
    }
}

impl Flags {
    /// Parses the argument vector, the program's name first.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut flags = Self::try_parse_from(normalise(arguments))?;
        if flags.obsolete.no_detach || flags.worker {
            flags.detach = false;
        }
        Ok(flags)
    }
}

/// Turns `-name` and `-name=value`, which Go programs accept, into `--name` and `--name=value`.
pub fn normalise(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut is_flag = true;
    let mut given = arguments.into_iter();
    let program = given.next();
    let rest = given.map(|argument| {
        is_flag &= argument != OsStr::new("--");
        match argument.to_str() {
            Some(text) if is_flag && is_single_dash_name(text) => format!("-{text}").into(),
            _ => argument,
        }
    });
    program.into_iter().chain(rest).collect()
}

/// Whether it is a dash and at least two letters: not `-h`, not `-`, not `-5`, not `--name`.
fn is_single_dash_name(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|name| {
        let mut letters = name.chars();
        letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.next().is_some_and(|c| c.is_ascii_alphabetic())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const UUID: &str = "zzzzz-dz642-0123456789abcde";

    fn read(arguments: &[&str]) -> Result<Flags, clap::Error> {
        Flags::read(
            std::iter::once("crunch-run")
                .chain(arguments.iter().copied())
                .map(OsString::from),
        )
    }

    #[test]
    fn single_dashes_become_double_ones() {
        let cases: [(&[&str], &[&str]); 7] = [
            (&["-cgroup-parent=x"], &["--cgroup-parent=x"]),
            (&["-detach", UUID], &["--detach", UUID]),
            (&["--detach=false"], &["--detach=false"]),
            (&["-h"], &["-h"]),
            (&["-kill", "-9"], &["--kill", "-9"]),
            (&["--", "-detach"], &["--", "-detach"]),
            (&["-", "-version"], &["-", "--version"]),
        ];
        for (given, expected) in cases {
            let all = std::iter::once(&"crunch-run").chain(given);
            let got = normalise(all.map(OsString::from));
            assert_eq!(&got[1..], expected, "{given:?}");
        }
    }

    #[test]
    fn what_upstream_s_configurations_say_is_understood() {
        let flags = read(&[
            "-cgroup-parent-subsystem=memory",
            "-crunchstat-interval=1m30s",
            "-enable-memory-limit=false",
            "-container-enable-networking",
            "always",
            "-detach=true",
            "-broken-node-hook=/etc/drain",
            UUID,
        ])
        .unwrap();
        assert_eq!(flags.crunchstat_interval, Duration::from_secs(90));
        assert!(!flags.enable_memory_limit && flags.detach);
        assert_eq!(flags.container_enable_networking, Networking::Always);
        assert_eq!(
            flags.obsolete.notes(),
            ["flag --cgroup-parent-subsystem is obsolete and does nothing here"]
        );
        assert_eq!(
            flags.broken_node_hook.as_deref(),
            Some("/etc/drain".as_ref())
        );
        assert!(!read(&["-no-detach", "-detach", UUID]).unwrap().detach);
        // The last of several values counts, as with Go's flags.
        let flags = read(&["-stop-grace=1s", "-stop-grace=2s", UUID]).unwrap();
        assert_eq!(flags.stop_grace, Duration::from_secs(2));
    }

    #[test]
    fn mistakes_are_refused() {
        for wrong in [
            &[][..],
            &["not-a-uuid"],
            &["-runtime-engine=lxc", UUID],
            &["-stop-grace=soon", UUID],
            &["--gpu-stack=cuda", UUID],
            &["-list"],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Flags::command().debug_assert();
    }
}

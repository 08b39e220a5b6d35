//! The command line: our flags, and those of upstream's crunch-run, which schedulers' configurations name.

mod choices;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use arvados_client::ContainerUuid;
use bytesize::ByteSize;
use clap::{ArgAction, Parser};

pub use self::choices::{EngineChoice, GatewayChoice, GpuStackFlag, MountMethod, Networking};
use crate::cache::{Limits, Share};

/// What `--help` says below the flags; `exit.rs` is the other place that knows.
const EXIT_STATUS: &str = "\
Exit status:
  0   the record has its final state
  75  the command never ran, and may be tried elsewhere
  76  the container is not this attempt's (any more)
  77  it ran, and its results are on this node and undelivered
  78  the flags or the environment are wrong

After 77, `crunch-run resume DIR` on the same node delivers what is in the job directory.

Signals:
  TERM, INT  stop the container; a second one does so at once
  XCPU       the same, because the time of its job is nearly over
  USR1       save the logs now
  USR2       the node will be taken away soon: tell the user, and save the logs";

/// Runs one container of the queue: fetches its inputs and image, runs it, and reports state, logs and output.
///
/// A dispatcher locks the container and starts this program on the node, with the token of that attempt in a
/// private file or in ARVADOS_API_TOKEN. ARVADOS_API_HOST, ARVADOS_API_HOST_INSECURE and SSL_CERT_FILE say where
/// the API server is.
#[derive(Debug, Parser)]
#[command(name = "crunch-run", version, after_long_help = EXIT_STATUS, args_override_self = true)]
pub struct Flags {
    /// The container to run
    #[arg(value_name = "UUID")]
    pub uuid: ContainerUuid,

    /// Start in the background, print {"UUID":…,"PID":…} and return
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL", hide_possible_values = true)]
    pub detach: bool,

    /// Read variables for this program from stdin, as JSON {"Env": {…}}, ARVADOS_API_TOKEN among them
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL", hide_possible_values = true)]
    pub stdin_config: bool,

    /// Directory of this attempt's logs and files [default: a new one in TMPDIR, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub job_dir: Option<PathBuf>,

    /// File that holds the attempt's token [default: ARVADOS_API_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Where inputs, the container's own files and outputs are put [default: in the job directory]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,

    /// Blocks of inputs and unpacked images, shared by all containers of this node [default: /var/cache/crunch-run,
    /// or in ~/.cache]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Most that the cache may take, like 50GiB, or a share of its file system; 0 keeps no blocks
    #[arg(long, value_name = "SIZE", default_value_t = Limits::default().size)]
    pub cache_size: Share,

    /// What the cache leaves free of its file system, whoever fills it
    #[arg(long, value_name = "SIZE", default_value_t = Limits::default().free)]
    pub cache_free: Share,

    /// Directory of a Keep server's blocks on this node (as dispatch-api has it), to be read directly; may be given
    /// several times
    #[arg(long, value_name = "DIR")]
    pub block_dir: Vec<PathBuf>,

    /// How the files of collections come to the container
    #[arg(long, value_enum, default_value_t = MountMethod::Copy, value_name = "METHOD")]
    pub mount_method: MountMethod,

    /// What runs the container
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto, value_name = "ENGINE")]
    pub runtime_engine: EngineChoice,

    /// The program of the engine "oci" [default: crun, or else runc]
    #[arg(long, value_name = "PROGRAM")]
    pub oci_runtime: Option<PathBuf>,

    /// Socket of the docker or podman service [default: as the environment says, or the usual places]
    #[arg(long, value_name = "PATH")]
    pub docker_socket: Option<PathBuf>,

    /// Network of containers: only for those that asked for the API, or for all
    #[arg(long, value_enum, default_value_t = Networking::Default, value_name = "WHEN")]
    pub container_enable_networking: Networking,

    /// CPUs the container may use, like 0,2-3
    #[arg(long, value_name = "LIST")]
    pub cpuset: Option<String>,

    /// Kind of the GPUs in --gpu-ids
    #[arg(long, value_enum, value_name = "STACK", requires = "gpu_ids")]
    pub gpu_stack: Option<GpuStackFlag>,

    /// GPUs the scheduler granted [default: as CUDA_VISIBLE_DEVICES and the like say]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub gpu_ids: Vec<String>,

    /// Directory with CDI specifications of GPUs; may be given several times, and the last wins [default: /etc/cdi and
    /// /var/run/cdi]
    #[arg(long, value_name = "DIR")]
    pub cdi_spec_dir: Vec<PathBuf>,

    /// Limit the container's memory to what it asked for
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL", hide_possible_values = true)]
    pub enable_memory_limit: bool,

    /// Time between two lines of statistics
    #[arg(long, value_parser = duration, default_value = "10s", value_name = "TIME")]
    pub crunchstat_interval: Duration,

    /// Time a container has to end after TERM, before it is killed
    #[arg(long, value_parser = duration, default_value = "10s", value_name = "TIME")]
    pub grace: Duration,

    /// Time beyond its maximum run time and the grace after which a container is killed although nothing else works
    #[arg(long, value_parser = duration, default_value = "5m", value_name = "TIME")]
    pub overdue: Duration,

    /// How long to keep trying to deliver results while the API or Keep does not answer
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "TIME")]
    pub deliver_for: Duration,

    /// Where undelivered results are taken, when --job-dir is not given [default: /var/tmp/crunch-run-undelivered-UID in
    /// a job of HTCondor, which removes TMPDIR; else they stay]
    #[arg(long, value_name = "DIR")]
    pub undelivered_dir: Option<PathBuf>,

    /// CPU time a container may use
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub cpu_time_limit: Option<Duration>,

    /// Processes and threads a container may have at a time [default: the engine's]
    #[arg(long, value_name = "N")]
    pub pids_limit: Option<u64>,

    /// What all files of the attempt may take, the container's own and its output included
    #[arg(long, value_name = "SIZE")]
    pub scratch_limit: Option<ByteSize>,

    /// How many files and directories these may be
    #[arg(long, value_name = "N")]
    pub scratch_inodes: Option<u64>,

    /// Largest output that is saved
    #[arg(long, value_name = "SIZE")]
    pub output_limit: Option<ByteSize>,

    /// Most that is kept of stdout and of stderr, where they go to the log
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    pub log_limit: ByteSize,

    /// Save the log of a running container this often
    #[arg(long, value_parser = duration, default_value = "30m", value_name = "TIME")]
    pub log_update_period: Duration,

    /// Save it also when it has grown by this much
    #[arg(long, default_value = "32MiB", value_name = "SIZE")]
    pub log_update_size: ByteSize,

    /// Serve the log of a running container to those who may read it, through the API server
    #[arg(long, value_enum, default_value_t = GatewayChoice::Auto, value_name = "WHEN")]
    pub container_gateway: GatewayChoice,

    /// Program to run when this node looks broken, with the reason as its argument
    #[arg(long, value_name = "FILE")]
    pub broken_node_hook: Option<PathBuf>,

    /// File that says so where there is no such program
    #[arg(
        long,
        default_value = "/var/lock/crunch-run-broken",
        value_name = "FILE"
    )]
    pub broken_node_marker: PathBuf,

    /// Trust only the certificates in this file (as SSL_CERT_FILE)
    #[arg(long, value_name = "FILE")]
    pub ca_certs: Option<PathBuf>,

    /// Run nothing: look whether this node could, as `crunch-run check` does with the same flags, and print that as one
    /// line of JSON. The token is not read. Ends with 0, whatever was found
    #[arg(long)]
    pub check: bool,

    /// This process is the one in the background; the lock is its stdin
    #[arg(long, hide = true)]
    pub worker: bool,

    /// The gateway secret is on stdin
    #[arg(long, hide = true)]
    pub gateway_secret_stdin: bool,

    #[command(flatten)]
    pub obsolete: Obsolete,
}

/// Flags of upstream's crunch-run that mean nothing here.
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
    /// One sentence for each that was given.
    pub fn notes(&self) -> Vec<String> {
        [
            ("cgroup-root", self.cgroup_root.is_some()),
            ("cgroup-parent", self.cgroup_parent.is_some()),
            (
                "cgroup-parent-subsystem",
                self.cgroup_parent_subsystem.is_some(),
            ),
            ("check-containerd", self.check_containerd.is_some()),
            (
                "container-network-mode",
                self.container_network_mode.is_some(),
            ),
            ("memprofile", self.memprofile.is_some()),
            ("config", self.config.is_some()),
            ("sleep", self.sleep.is_some()),
        ]
        .into_iter()
        .filter(|(_, given)| *given)
        .map(|(name, _)| format!("flag --{name} is obsolete and does nothing here"))
        .collect()
    }
}

impl Flags {
    /// From the whole argument vector, the program's name first.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut flags = Self::try_parse_from(normalise(arguments))?;
        if flags.obsolete.no_detach || flags.worker {
            flags.detach = false;
        }
        Ok(flags)
    }
}

/// `-name` and `-name=value`, which the Go programs take, as `--name` and `--name=value`.
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

/// A dash and at least two letters: not `-h`, not `-`, not `-5`, not `--name`.
fn is_single_dash_name(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|name| {
        let mut letters = name.chars();
        letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.next().is_some_and(|c| c.is_ascii_alphabetic())
    })
}

/// `10s`, `1m30s`, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let parsed = text.parse::<jiff::SignedDuration>();
    parsed
        .ok()
        .and_then(|d| Duration::try_from(d).ok())
        .ok_or_else(|| "write a time like 10s or 1m30s".to_owned())
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
        // As with Go's flags, the last one counts.
        let flags = read(&["-grace=1s", "-grace=2s", UUID]).unwrap();
        assert_eq!(flags.grace, Duration::from_secs(2));
    }

    #[test]
    fn mistakes_are_refused() {
        for wrong in [
            &[][..],
            &["not-a-uuid"],
            &["-runtime-engine=lxc", UUID],
            &["-grace=soon", UUID],
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

//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::backup::command::Maintenance;
use crate::emulation::Emulate;
use crate::limits::MAX_BODY_BYTES;

/// The embedded Arvados API server: container queue, collections and Keep blocks in one process.
///
/// Without a command it serves. Prints one JSON line when it is ready. Exit status: 0 after SIGTERM
/// or SIGINT, 78 for an error in the command line or the state directory, 1 for any other failure.
#[derive(Clone, Debug, Parser)]
#[command(
    version,
    disable_help_subcommand = true,
    after_help = "`dispatch-api man` prints the manual page. `dispatch-api man --dir DIR` \
                        writes it and those of the commands to DIR."
)]
pub struct Options {
    /// Directory of the database, the blocks, the certificate and the tokens
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,

    /// Address and port to listen on [default: 127.0.0.1 and the port of the last start]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,

    /// Certificate chain in PEM format to use instead of a self-signed certificate
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Five letters or digits that begin every uuid; set at the first start [default: local]
    #[arg(long, value_name = "ID")]
    pub cluster_id: Option<String>,

    /// Maximum number of running containers with an open log tunnel; each tunnel is one connection
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub max_gateway_tunnels: usize,

    /// Maximum number of open connections, without websockets and tunnels
    ///
    /// A new connection then replaces an idle one of the address with the most connections. One
    /// user may have requests in progress on half of them. A connection needs one file descriptor
    /// and, while idle, about 32 KiB of memory.
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..))]
    pub max_connections: usize,

    /// Maximum memory for the bodies of requests and large responses; one user may have half of it
    ///
    /// At least 128MiB, so that one user can save a collection with a manifest of 64 MiB. JSON of
    /// bodies may take half as much in addition while it is parsed; half of that for one user.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_request_memory)]
    pub max_request_memory: u64,

    /// Accept requests for nodes that other jobs may take away (preemptible)
    ///
    /// Set it where a dispatcher maps them to a partition or to machines.
    #[arg(long)]
    pub accept_preemptible: bool,

    /// Time that a client may keep the server waiting while it sends or receives a body
    ///
    /// Each 16 KiB that it sends or receives gives one second back, so a slower transfer ends
    /// after this time. It ends with status 408, or without a response.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::parse_duration)]
    pub transfer_timeout: Duration,

    /// File to which one JSON line is appended for each response; `-` is standard error
    ///
    /// A line has the time, the client's address, user, method and path without query, the status,
    /// milliseconds and bytes sent. Tokens never appear.
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,

    /// Server whose API behaviour to emulate, for tests of clients
    ///
    /// With `arvados-3`, features that Arvados 3.2 does not have are disabled, and requests that it
    /// rejects are rejected. Its permissions are those of Arvados, which are wider in a few
    /// places. An administrator can start faults with `POST /_emulation/fault` and the body
    /// `{"fault": NAME, "seconds": N}`. For N seconds, every second request then fails: with status
    /// 401 for `database-restart`, 503 for `overload`, 500 for `context-canceled`.
    #[arg(long, value_enum, value_name = "SERVER", default_value_t = Emulate::None,
          env = "DISPATCH_API_EMULATE")]
    pub emulate: Emulate,

    /// Format of the log on standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    #[command(subcommand)]
    pub maintenance: Option<Maintenance>,
}

/// Minimum of --max-request-memory: two bodies of the maximum size.
const MIN_REQUEST_MEMORY: u64 = 2 * MAX_BODY_BYTES;

fn parse_request_memory(text: &str) -> Result<u64, String> {
    let size = units::parse_size(text).map_err(|problem| problem.to_string())?;
    match size >= MIN_REQUEST_MEMORY {
        true => Ok(size),
        false => Err("at least 128MiB are needed".into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl Options {
    /// Default options for a state directory.
    pub fn new(state_dir: PathBuf) -> Self {
        let words = [
            "dispatch-api".into(),
            "--state-dir".into(),
            state_dir.into_os_string(),
        ];
        Options::try_parse_from::<_, OsString>(words).expect(
            "every option but --state-dir has a default, and the environment names known values",
        )
    }
}

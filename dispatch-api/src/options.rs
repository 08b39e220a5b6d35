//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::emulation::Emulate;

/// The embedded Arvados API server: container queue, collections and Keep blocks in one process.
///
/// Prints one JSON line when it is ready. Exit status: 0 after SIGTERM or SIGINT, 78 when something about the
/// command line or the state directory must be changed first, 1 for any other failure.
#[derive(Clone, Debug, Parser)]
#[command(version, after_help = "`dispatch-api man` prints the manual page.")]
pub struct Options {
    /// Directory for the database, the blocks, the certificate and the tokens.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,

    /// Address and port to listen on [default: 127.0.0.1 and the port of the last start]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,

    /// Certificate chain in PEM to use instead of a self-made one.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Five letters or digits every uuid begins with; chosen at the first start [default: local]
    #[arg(long, value_name = "ID")]
    pub cluster_id: Option<String>,

    /// Maximum number of containers whose logs can be read while they run; each holds a connection.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub max_gateway_tunnels: usize,

    /// Server to pass for, so that clients can be tried as they will find it. For tests only.
    ///
    /// With `arvados-3`, what Arvados 3.2 does not have is not there, and what it refuses is refused. The user of the
    /// token file `user` is no administrator then, where the state directory is new. An administrator may ask for
    /// faults: `POST /_emulation/fault` with `{"fault": NAME, "seconds": N}`, where NAME is `database-restart`,
    /// `overload` or `context-canceled`, ends every second request with 401, 503 or 500 for that time.
    #[arg(long, value_enum, value_name = "SERVER", default_value_t = Emulate::None,
          env = "DISPATCH_API_EMULATE")]
    pub emulate: Emulate,

    /// Form of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl Options {
    /// Defaults for a state directory, as on a command line that names nothing else.
    pub fn new(state: PathBuf) -> Self {
        let words = [
            "dispatch-api".into(),
            "--state".into(),
            state.into_os_string(),
        ];
        Options::try_parse_from::<_, OsString>(words).expect(
            "every option but --state has a default, and the environment names known values",
        )
    }
}

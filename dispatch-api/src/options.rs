//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

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
    /// Defaults for a state directory.
    pub fn new(state: PathBuf) -> Self {
        Options {
            state,
            listen: None,
            tls_cert: None,
            tls_key: None,
            cluster_id: None,
            log_format: LogFormat::Text,
        }
    }
}

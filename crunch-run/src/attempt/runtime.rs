//! The tokio runtime of one attempt or one delivery, with signal handlers and logging to stderr.

use std::io;
use std::time::Duration;

use crunch_contract::ExitCode;

use crate::node::signals::{self, Signals};

/// Runs `work` to its end in a new runtime.
pub fn in_runtime<F: Future<Output = ExitCode>>(
    work: impl FnOnce(Signals) -> F,
) -> io::Result<ExitCode> {
    // An existing subscriber belongs to the caller.
    let _ = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let code = runtime.block_on(async {
        let signals = signals::listen()?;
        io::Result::Ok(work(signals).await)
    });
    // Do not wait for threads that may hang in a system call.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

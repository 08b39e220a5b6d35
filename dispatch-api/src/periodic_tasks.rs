//! What the server does from time to time: expiry and the renewal of its certificate every
//! minute, the removal of unused blocks once a day.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use crate::app::App;
use crate::blocks::signature::SIGNATURE_TTL;
use crate::container::follow_up;
use crate::error::Result;
use crate::expiry;
use crate::garbage;
use crate::server_tls::ServerTls;

const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between two removals of unused blocks, and the delay of the first.
const SWEEP_INTERVAL: Duration = Duration::from_secs(24 * 3600);
const FIRST_SWEEP_DELAY: Duration = Duration::from_secs(3600);

/// Repeats a batch of work until it says that there is no more, or fails.
async fn repeat(
    app: &Arc<App>,
    failed: &str,
    batch: impl Fn(&App) -> Result<bool> + Copy + Send + 'static,
) {
    loop {
        let worker = app.clone();
        match tokio::task::spawn_blocking(move || batch(&worker)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) => return,
            Ok(Err(problem)) => {
                warn!(error = %problem, "{failed}");
                return;
            }
        }
    }
}

/// Removes blocks that nobody can refer to any more: their signatures have expired.
fn sweep(app: &App) -> Result<bool> {
    let report = garbage::collect(
        app,
        garbage::Request {
            older_than: Duration::from_secs(SIGNATURE_TTL),
            empty_trash: false,
            dry_run: false,
        },
    )?;
    info!(
        blocks = report.blocks,
        bytes = report.bytes,
        "removed unused blocks"
    );
    Ok(report.more)
}

fn expire(app: &App) -> Result<bool> {
    // An earlier process, or a full disk, may have left some.
    app.write(follow_up::run_batch)?;
    let done = app.write(expiry::run_batch)?;
    app.attempt_tokens.remove_overrides(&done.removed_overrides);
    Ok(done.more)
}

/// Runs until the server stops.
pub async fn run(app: Arc<App>, tls: Arc<ServerTls>) {
    let mut tick = tokio::time::interval(HOUSEKEEPING_INTERVAL);
    let mut next_sweep = tokio::time::Instant::now() + FIRST_SWEEP_DELAY;
    loop {
        tick.tick().await;
        if tokio::time::Instant::now() >= next_sweep {
            next_sweep += SWEEP_INTERVAL;
            let failed = "cannot remove unused blocks; the next try is in a day";
            repeat(&app, failed, sweep).await;
        }
        app.rejections.log_counts();
        app.disk_reserve.refill();
        if let Err(problem) = tls.renew_if_due(Timestamp::now()) {
            warn!(error = %problem, "cannot renew the certificate; retrying in one minute");
        }
        repeat(&app, "expiry failed; the next run is in one minute", expire).await;
    }
}

//! What the server does from time to time: expiry and the renewal of its certificate every
//! minute, the removal of unused blocks once a day.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use crate::app::App;
use crate::blocks::signature::SIGNATURE_TTL;
use crate::expiry;
use crate::garbage;
use crate::server_tls::ServerTls;

const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between two removals of unused blocks, and the delay of the first.
const SWEEP_INTERVAL: Duration = Duration::from_secs(24 * 3600);
const FIRST_SWEEP_DELAY: Duration = Duration::from_secs(3600);

/// Removes blocks that nobody can refer to any more: their signatures have expired.
async fn sweep(app: &Arc<App>) {
    let request = garbage::Request {
        older_than: Duration::from_secs(SIGNATURE_TTL),
        empty_trash: false,
        dry_run: false,
    };
    loop {
        let worker = app.clone();
        let collected =
            tokio::task::spawn_blocking(move || garbage::collect(&worker, request)).await;
        match collected {
            Ok(Ok(report)) => {
                info!(
                    blocks = report.blocks,
                    bytes = report.bytes,
                    "removed unused blocks"
                );
                if !report.more {
                    return;
                }
            }
            Ok(Err(problem)) => {
                warn!(error = %problem, "cannot remove unused blocks; the next try is in a day");
                return;
            }
            Err(_) => return,
        }
    }
}

/// Runs until the server stops.
pub async fn run(app: Arc<App>, tls: Arc<ServerTls>) {
    let mut tick = tokio::time::interval(HOUSEKEEPING_INTERVAL);
    let mut next_sweep = tokio::time::Instant::now() + FIRST_SWEEP_DELAY;
    loop {
        tick.tick().await;
        if tokio::time::Instant::now() >= next_sweep {
            next_sweep += SWEEP_INTERVAL;
            sweep(&app).await;
        }
        app.rejections.log_counts();
        app.disk_reserve.refill();
        if let Err(problem) = tls.renew_if_due(Timestamp::now()) {
            warn!(error = %problem, "cannot renew the certificate; retrying in one minute");
        }
        loop {
            let worker = app.clone();
            let result = tokio::task::spawn_blocking(move || worker.write(expiry::run_batch)).await;
            match result {
                Ok(Ok(result)) => {
                    app.attempt_tokens
                        .remove_overrides(&result.removed_overrides);
                    if !result.more {
                        break;
                    }
                }
                Ok(Err(problem)) => {
                    warn!(error = %problem, "expiry failed; the next run is in one minute");
                    break;
                }
                Err(_) => break,
            }
        }
    }
}

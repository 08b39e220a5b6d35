//! `dispatch gc`: has dispatch-api remove the blocks that no collection refers to, and crunch-run
//! empty the cache of this machine.

use std::process::Stdio;
use std::time::Duration;

use arvados_client::Client;
use arvados_client::client::Call;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::process::Command;

use super::user::administrator;
use crate::error::CliError;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::supervise::programs;
use crate::text::plural;
use units::{format_duration, format_size};

/// The command that frees the space of what was just removed.
pub const FREE_SPACE: &str = "dispatch gc --delete --empty-trash --older-than 0s";
/// Timeout of one call, which removes up to 20,000 blocks.
const CALL_TIMEOUT: Duration = Duration::from_secs(900);

/// Show what takes disk space on dispatch-api without being used, and with --delete remove it (for
/// an administrator)
///
/// Unused are blocks of data that no collection refers to. Collections in the trash count as used,
/// unless --empty-trash is given. Young blocks are left alone: somebody may be storing a
/// collection. So are blocks that were stored since the start of the oldest job that runs.
#[derive(Debug, Args)]
pub struct Gc {
    /// Remove it; without this, it is only shown
    #[arg(long)]
    pub delete: bool,
    /// Also the collections in the trash, of all users
    #[arg(long)]
    pub empty_trash: bool,
    /// Minimum age of blocks, and minimum time in the trash; with 0, who is storing a collection
    /// may have to do it again
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::parse_duration)]
    pub older_than: Duration,
    /// Also the unpacked images and inputs in the cache of this machine's 'dispatch up', except
    /// those in use
    #[arg(long)]
    pub cache: bool,
}

/// The reply of `collections/collect_garbage`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Report {
    blocks: u64,
    bytes: u64,
    collections: u64,
    kept_trash: u64,
    kept_blocks: u64,
    kept_bytes: u64,
    young_blocks: u64,
    young_bytes: u64,
    held_blocks: u64,
    held_bytes: u64,
    more: bool,
}

pub async fn run(args: Gc, session: &Session, out: Output) -> Result<(), CliError> {
    let mut endpoint = session.client.endpoint().clone();
    endpoint.call_timeout = CALL_TIMEOUT;
    endpoint.retry_budget = CALL_TIMEOUT;
    let client = Client::new(endpoint)?;
    let mut total = Report::default();
    administrator(&client).await?;
    loop {
        let report = collect(&client, &args).await?;
        total = Report {
            blocks: total.blocks + report.blocks,
            bytes: total.bytes + report.bytes,
            collections: total.collections + report.collections,
            ..report
        };
        if !report.more {
            break;
        }
    }
    let cache = match args.cache {
        true => Some(clean_cache(session, args.delete).await?),
        false => None,
    };
    if out.json {
        let report = json!({"deleted": args.delete, "report": total, "cache": cache});
        return out.json(&report);
    }
    let verb = match args.delete {
        true => "removed",
        false => "can be removed",
    };
    let blocks = |count, bytes| format!("{} ({})", plural(count, "block"), format_size(bytes));
    let trash = match total.collections {
        0 => String::new(),
        count => format!("{} in the trash and ", plural(count, "collection")),
    };
    let gone = blocks(total.blocks, total.bytes);
    let kept = blocks(total.kept_blocks, total.kept_bytes);
    out.line(&format!("{trash}{gone} {verb}; {kept} stay"))?;
    let too_young = total.young_blocks.saturating_sub(total.held_blocks);
    if too_young > 0 {
        let bytes = total.young_bytes.saturating_sub(total.held_bytes);
        let young = blocks(too_young, bytes);
        let age = format_duration(args.older_than);
        eprint_note(&format!(
            "{young} of these are unused, but not older than {age} (--older-than)"
        ));
    }
    if total.held_blocks > 0 {
        let held = blocks(total.held_blocks, total.held_bytes);
        eprint_note(&format!(
            "{held} of these are unused, but younger than a job that runs: it may have stored them; run this again when it has ended"
        ));
    }
    let trash = plural(total.kept_trash, "collection");
    match (total.kept_trash, args.empty_trash) {
        (0, _) => {}
        (_, true) if args.older_than.is_zero() => {
            eprint_note(&format!("{trash} in the trash, needed by a job"));
        }
        (_, true) => {
            let age = format_duration(args.older_than);
            eprint_note(&format!(
                "{trash} in the trash, needed by a job or there for less than {age} (--older-than)"
            ));
        }
        (_, false) => eprint_note(&format!(
            "{trash} in the trash count as used; --empty-trash deletes those, too: what was removed (dispatch --admin collection list --trash) and what crunch-run stored for the server to copy"
        )),
    }
    if let Some(cache) = &cache {
        out.line(&format!("cache: {cache}"))?;
    }
    if !args.delete && (args.cache || total.blocks + total.collections > 0) {
        eprint_note("nothing was removed; do it with --delete");
    }
    Ok(())
}

/// Empties the cache of this machine, or lists its size; returns the last line that crunch-run
/// prints.
async fn clean_cache(session: &Session, delete: bool) -> Result<String, CliError> {
    let dir = session.local.as_ref().and_then(|state| state.record().ok());
    let dir = dir.and_then(|record| record.cache_dir);
    let dir = dir.ok_or(CliError::NoCache)?;
    let program = programs::find("crunch-run")?;
    let mut command = Command::new(program);
    command.arg("cache").arg(if delete { "gc" } else { "ls" });
    command.arg("--cache-dir").arg(&dir);
    if delete {
        command.args(["--cache-size", "0"]);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    let failed = |reason: String| CliError::CacheNotCleaned {
        dir: dir.clone(),
        reason,
    };
    let output = tokio::time::timeout(CALL_TIMEOUT, command.output()).await;
    let output = output.map_err(|_| failed("it does not end".to_owned()))?;
    let output = output.map_err(|error| failed(error.to_string()))?;
    let last = |text: &[u8]| -> String {
        let text = String::from_utf8_lossy(text);
        text.lines().last().unwrap_or_default().to_owned()
    };
    match output.status.success() {
        true => Ok(last(&output.stdout)),
        false => Err(failed(last(&output.stderr))),
    }
}

async fn collect(client: &Client, args: &Gc) -> Result<Report, CliError> {
    let body = json!({
        "older_than": args.older_than.as_secs(), "empty_trash": args.empty_trash,
        "dry_run": !args.delete,
    });
    let call = Call::post("collections/collect_garbage", body).repeatable();
    match client.send(call).await {
        Err(error) if error.is_not_found() => Err(CliError::NoGarbageCollection),
        report => Ok(report?),
    }
}

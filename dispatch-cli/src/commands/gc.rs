//! `dispatch gc`: has dispatch-api remove the blocks that no collection refers to.

use std::time::Duration;

use arvados_client::Client;
use arvados_client::client::Call;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::user::shown_name;
use crate::error::CliError;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
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
/// collection. So are those that running jobs have stored.
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
    more: bool,
}

pub async fn run(args: Gc, session: &Session, out: Output) -> Result<(), CliError> {
    let mut endpoint = session.client.endpoint().clone();
    endpoint.call_timeout = CALL_TIMEOUT;
    endpoint.retry_budget = CALL_TIMEOUT;
    let client = Client::new(endpoint)?;
    let mut total = Report::default();
    let user = client.current_user().await?;
    if !user.is_admin {
        return Err(CliError::NotAdmin(shown_name(&user)));
    }
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
    if out.json {
        return out.json(&json!({"deleted": args.delete, "report": total}));
    }
    let verb = if args.delete {
        "removed"
    } else {
        "can be removed"
    };
    let blocks = |count, bytes| format!("{} ({})", plural(count, "block"), format_size(bytes));
    let trash = match total.collections {
        0 => String::new(),
        count => format!("{} in the trash and ", plural(count, "collection")),
    };
    let (gone, kept) = (
        blocks(total.blocks, total.bytes),
        blocks(total.kept_blocks, total.kept_bytes),
    );
    out.line(&format!("{trash}{gone} {verb}; {kept} stay"))?;
    if total.young_blocks > 0 {
        let young = blocks(total.young_blocks, total.young_bytes);
        let age = format_duration(args.older_than);
        eprint_note(&format!(
            "{young} of these are unused, but not older than {age} (--older-than)"
        ));
    }
    let trash = plural(total.kept_trash, "collection");
    match (total.kept_trash, args.empty_trash) {
        (0, _) => {}
        (_, true) => {
            let age = format_duration(args.older_than);
            eprint_note(&format!(
                "{trash} in the trash, needed by a job or there for less than {age} (--older-than)"
            ));
        }
        (_, false) => eprint_note(&format!(
            "{trash} in the trash (outputs, logs and inputs of jobs, images) count as used; --empty-trash deletes those, too"
        )),
    }
    if !args.delete && total.blocks + total.collections > 0 {
        eprint_note("nothing was removed; do it with --delete");
    }
    Ok(())
}

async fn collect(client: &Client, args: &Gc) -> Result<Report, CliError> {
    let body = json!({
        "older_than": args.older_than.as_secs(), "empty_trash": args.empty_trash,
        "dry_run": !args.delete,
    });
    let call = Call::post("collections/collect_garbage", body).repeatable();
    client
        .send(call)
        .await
        .map_err(|error| match error.is_not_found() {
            true => CliError::NoGarbageCollection,
            false => error.into(),
        })
}

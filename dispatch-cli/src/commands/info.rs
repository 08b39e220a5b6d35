//! `dispatch info`: prints the server, its queue, and the capacity of this machine if known.

use arvados_client::Client;
use arvados_client::filter::Query;
use arvados_client::records::User;
use serde_json::{Value, json};

use crate::disk_usage::DiskUsage;
use crate::error::CliError;
use crate::job::KILLED_PROPERTY;
use crate::job_numbers::REQUESTS;
use crate::jobs;
use crate::local_status::{self, Resources, StatusReply};
use crate::printer::Output;
use crate::session::Session;
use crate::supervise::engine_check;
use crate::text::plural;
use units::format_size;

/// End of the uuid of the system user, whose token is the SystemRootToken of the cluster.
const SYSTEM_USER: &str = "-tpzed-000000000000000";

/// Number of containers per state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
struct Counts {
    waiting: u64,
    held: u64,
    locked: u64,
    running: u64,
}

impl Counts {
    /// The containers that the user of this client sees.
    async fn of(client: &Client) -> Result<Self, CliError> {
        let (waiting, held, locked, running) = tokio::try_join!(
            number_of(client, "Queued"),
            number_of_held(client),
            number_of(client, "Locked"),
            number_of(client, "Running"),
        )?;
        Ok(Self {
            waiting,
            held,
            locked,
            running,
        })
    }

    /// In words, such as "1 running, 0 starting, 3 waiting, 1 on hold".
    fn description(self) -> String {
        let held = match self.held {
            0 => String::new(),
            held => format!(", {held} on hold"),
        };
        format!(
            "{} running, {} starting, {} waiting{held}",
            self.running, self.locked, self.waiting
        )
    }
}

pub async fn run(session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let admin = session.as_admin()?;
    let (user, discovery, counts, of_all, dispatcher) = tokio::join!(
        client.current_user(),
        client.discovery(),
        Counts::of(client),
        Counts::of(&admin.client),
        local_status::fetch(session),
    );
    let (user, discovery, counts, of_all) = (user?, discovery?, counts?, of_all?);
    let usage = match &session.local {
        Some(local) => DiskUsage::of(local.clone()).await,
        None => None,
    };
    let engine = session.local.as_ref().and_then(engine_check::last);
    if out.json {
        return out.json(&json!({
            "host": session.host(),
            "cluster": discovery.uuid_prefix,
            "user": display_name(&user),
            "user_uuid": user.uuid,
            "state_dir": session.local.as_ref().map(|dir| dir.path()),
            "containers": counts,
            "engine": engine,
            "disk_bytes": usage,
            "dispatcher": match &dispatcher {
                StatusReply::Reply(status) => json!(status),
                StatusReply::NoReply => json!("silent"),
                StatusReply::NotLocal => Value::Null,
            },
        }));
    }
    let row = |title: &str, text: &str| out.line(&format!("{title:<10}  {text}"));
    let cluster = &discovery.uuid_prefix;
    row("Server", &format!("{} (cluster {cluster})", session.host()))?;
    let name = display_name(&user);
    row("User", &format!("{name} ({})", user.uuid))?;
    if let Some(local) = &session.local {
        row("State", &local.path().display().to_string())?;
        row("Log", &local.join("log").display().to_string())?;
        row(
            "Engine",
            &match &engine {
                Some(Some(engine)) => engine_check::description(engine),
                Some(None) => {
                    "none worked when 'dispatch up' started; see: crunch-run check --offline"
                        .to_owned()
                }
                None => {
                    "not known: the check has not ended; see: crunch-run check --offline".to_owned()
                }
            },
        )?;
    }
    if let Some(usage) = usage {
        let amounts = [
            usage.blocks,
            usage.records,
            usage.cache,
            usage.scratch,
            usage.free,
        ];
        let [blocks, records, cache, scratch, free] = amounts.map(format_size);
        row(
            "Storage",
            &format!(
                "{blocks} stored, {records} records, {cache} cache, {scratch} of running containers; {free} free"
            ),
        )?;
    }
    row("Containers", &counts.description())?;
    if of_all != counts {
        let all = of_all.description();
        row(
            "All users",
            &format!("{all}; see them with: dispatch --admin list"),
        )?;
    }
    let status = match &dispatcher {
        StatusReply::Reply(status) => status,
        StatusReply::NoReply => return row("Dispatcher", "does not answer; see the log"),
        StatusReply::NotLocal => {
            return row(
                "Capacity",
                "not known here: only the account that runs the dispatcher sees it",
            );
        }
    };
    if let Some(error) = &status.error {
        row("Dispatcher", error)?;
    }
    let is_any = |others: &Resources| *others != Resources::default();
    let others = status.others.filter(is_any);
    let rows = [
        ("Capacity", status.capacity),
        ("Others", others),
        ("Free", status.free),
    ];
    for (title, amounts) in rows {
        if let Some(amounts) = amounts {
            let amounts = amounts.description();
            // What others hold of the disk is not known.
            let amounts = match title {
                "Others" => amounts.replace(", 0 B scratch", ""),
                "Free" => amounts + &still_held(status.being_handled(), of_all),
                _ => amounts,
            };
            row(title, &amounts)?;
        }
    }
    Ok(())
}

/// Says which ended containers have resources still: the dispatcher frees them with the end of
/// their crunch-run.
fn still_held(handled: u64, of_all: Counts) -> String {
    match handled.saturating_sub(of_all.running + of_all.locked) {
        0 => String::new(),
        ended => format!("; {} just ended and not yet freed", plural(ended, "job")),
    }
}

/// Display name of a user; the system user has no login name.
fn display_name(user: &User) -> String {
    let names = [&user.username, &user.full_name];
    let name = names.into_iter().find(|name| !name.is_empty());
    match (name, user.uuid.as_str().ends_with(SYSTEM_USER)) {
        (Some(name), true) => format!("{name}, the system user"),
        (None, true) => "the system user".to_owned(),
        (Some(name), false) => name.clone(),
        (None, false) => "a user without a name".to_owned(),
    }
}

/// Number of containers in a state; of Queued ones, those that are not on hold.
pub async fn number_of(client: &Client, state: &str) -> Result<u64, CliError> {
    let mut query = Query::new().filter("state", "=", state);
    if state == "Queued" {
        query = query.filter("priority", ">", 0);
    }
    Ok(jobs::count(client, "containers", query).await?.unwrap_or(0))
}

/// Number of requests that wait with priority 0, without those of jobs that were killed.
async fn number_of_held(client: &Client) -> Result<u64, CliError> {
    let stopped = Query::new()
        .filter("state", "=", "Committed")
        .filter("priority", "=", 0);
    let killed = format!("properties.{KILLED_PROPERTY}");
    let killed = stopped.clone().filter(&killed, "=", true);
    let killed = jobs::count(client, REQUESTS, killed).await?.unwrap_or(0);
    let stopped = jobs::count(client, REQUESTS, stopped).await?.unwrap_or(0);
    Ok(stopped.saturating_sub(killed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dispatcher_has_not_freed_yet_is_said() {
        let counts = Counts {
            waiting: 9,
            held: 0,
            locked: 1,
            running: 2,
        };
        for (handled, words) in [
            (0, ""),
            (3, ""),
            (4, "; 1 job just ended and not yet freed"),
            (5, "; 2 jobs just ended and not yet freed"),
        ] {
            assert_eq!(still_held(handled, counts), words, "{handled}");
        }
    }

    #[test]
    fn every_user_is_called_something() {
        // uuid, login name, full name
        let rows = [
            ("zzzzz-tpzed-0123456789abcde", "alice", "Alice A", "alice"),
            ("zzzzz-tpzed-0123456789abcde", "", "Alice A", "Alice A"),
            (
                "zzzzz-tpzed-0123456789abcde",
                "",
                "",
                "a user without a name",
            ),
            (
                "zzzzz-tpzed-000000000000000",
                "",
                "root",
                "root, the system user",
            ),
            ("zzzzz-tpzed-000000000000000", "", "", "the system user"),
        ];
        for (uuid, username, full_name, name) in rows {
            let user = json!({"uuid": uuid, "username": username, "full_name": full_name});
            assert_eq!(display_name(&serde_json::from_value(user).unwrap()), name);
        }
    }
}

//! `dispatch info`: prints the server, its queue, and the capacity of this machine if known.

use arvados_client::Client;
use arvados_client::filter::Query;
use arvados_client::records::{Container, ContainerRequest, User};
use clap::Args;
use serde_json::{Value, json};

use crate::disk_usage::DiskUsage;
use crate::error::CliError;
use crate::job::KILLED_PROPERTY;
use crate::local_status::{self, Resources, StatusReply};
use crate::printer::Output;
use crate::session::Session;
use crate::supervise::engine_check;
use crate::text::{plural, strip_control};
use units::format_size;

/// Show the server, the queue, and what is free on this machine
#[derive(Debug, Args)]
pub struct Info {}

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
    let (status, silent) = match &dispatcher {
        StatusReply::Reply(status) => (Some(status), false),
        StatusReply::NoReply => (None, true),
        StatusReply::NotLocal => (None, false),
    };
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
    out.line(&format!(
        "Server      {} (cluster {})",
        session.host(),
        discovery.uuid_prefix
    ))?;
    out.line(&format!(
        "User        {} ({})",
        strip_control(&display_name(&user)),
        user.uuid
    ))?;
    if let Some(local) = &session.local {
        out.line(&format!("State       {}", local.path().display()))?;
        out.line(&format!("Log         {}", local.join("log").display()))?;
        let engine = match &engine {
            Some(Some(engine)) => engine_check::description(engine),
            Some(None) => {
                "none worked when 'dispatch up' started; see: crunch-run check --offline".to_owned()
            }
            None => {
                "not known: the check has not ended; see: crunch-run check --offline".to_owned()
            }
        };
        out.line(&format!("Engine      {engine}"))?;
    }
    if let Some(usage) = usage {
        let (blocks, records, cache, scratch) = (
            format_size(usage.blocks),
            format_size(usage.records),
            format_size(usage.cache),
            format_size(usage.scratch),
        );
        out.line(&format!(
            "Storage     {blocks} stored, {records} records, {cache} cache, {scratch} of running containers; {} free",
            format_size(usage.free)
        ))?;
    }
    out.line(&format!("Containers  {}", counts.description()))?;
    if of_all != counts {
        let all = of_all.description();
        out.line(&format!(
            "All users   {all}; see them with: dispatch --admin list"
        ))?;
    }
    if silent {
        out.line("Dispatcher  does not answer; see the log")?;
    }
    let Some(status) = status else {
        if session.local.is_none() {
            out.line(
                "Capacity    not known here: only the account that runs the dispatcher sees it",
            )?;
        }
        return Ok(());
    };
    if let Some(error) = &status.error {
        out.line(&format!("Dispatcher  {}", strip_control(error)))?;
    }
    let others = status
        .others
        .filter(|others| *others != Resources::default());
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
            out.line(&format!("{title:<10}  {amounts}"))?;
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
    let mut query = Query::new().filter("state", "=", state).counted().limit(0);
    if state == "Queued" {
        query = query.filter("priority", ">", 0);
    }
    let page = client.page::<Container>("containers", &query).await?;
    Ok(page.items_available.unwrap_or(0))
}

/// Number of requests that wait with priority 0, without those of jobs that were killed.
async fn number_of_held(client: &Client) -> Result<u64, CliError> {
    let count = async |query: Query| {
        let page = client
            .page::<ContainerRequest>("container_requests", &query.counted().limit(0))
            .await?;
        Ok::<_, CliError>(page.items_available.unwrap_or(0))
    };
    let stopped = Query::new()
        .filter("state", "=", "Committed")
        .filter("priority", "=", 0);
    let killed = format!("properties.{KILLED_PROPERTY}");
    let killed = count(stopped.clone().filter(&killed, "=", true)).await?;
    Ok(count(stopped).await?.saturating_sub(killed))
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

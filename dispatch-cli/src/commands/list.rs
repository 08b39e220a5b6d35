//! `dispatch list`: prints a table of the newest jobs.

use std::io::{self, IsTerminal};
use std::time::Duration;

use arvados_client::Client;
use arvados_client::filter::Query;
use clap::{Args, ValueEnum};
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::wait::summary;
use crate::completion;
use crate::disk_usage;
use crate::error::CliError;
use crate::job::{Job, JobState};
use crate::jobs;
use crate::owners::{OwnerNames, project_uuid, user_uuid};
use crate::printer::{Output, eprint_note};
use crate::result_file;
use crate::session::Session;
use crate::text::{shortened, time_between};
use units::{format_duration, format_size};

/// List the newest jobs
#[derive(Debug, Args)]
pub struct List {
    /// Show only my own jobs
    #[arg(long)]
    pub mine: bool,
    /// Show only jobs that have not ended
    #[arg(long)]
    pub active: bool,
    /// Show only jobs with this name; % stands for any text
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Show only jobs in these states, such as Queued,Running
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = JobState::parse, add = completion::states())]
    pub status: Vec<JobState>,
    /// Show only jobs that were cancelled, or ended with an exit code other than 0
    #[arg(long)]
    pub failed: bool,
    /// Show only jobs that were submitted within this time, such as 2h or 3d
    #[arg(long, value_name = "TIME", value_parser = units::parse_whole_seconds)]
    pub since: Option<Duration>,
    /// Show the list again every two seconds, until Ctrl-C; needs a terminal
    #[arg(long)]
    pub watch: bool,
    /// Format of the list
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Format,
    /// Maximum number of jobs to show
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Show all jobs
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Show the peak memory of ended jobs, which reads the log of each job
    #[arg(long)]
    pub usage: bool,
}

impl List {
    /// Whether the server is asked for a part of the jobs only.
    fn selects(&self) -> bool {
        self.mine || self.active || self.name.is_some() || self.since.is_some()
    }
}

/// Format of the list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The columns that fit the terminal
    #[default]
    Table,
    /// All columns
    Wide,
    /// JSON, as with --json
    Json,
    /// Numbers of the jobs, or uuids of those without a number, one per line
    Ids,
}

/// Columns that give way on a narrow terminal, the first one first.
const DROP_ORDER: [&str; 9] = [
    "UUID", "PROJECT", "USER", "PRIO", "CPUS", "MEM", "AGE", "TIME", "PEAK MEM",
];
/// Time between two lists of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Moves to the top left of a terminal and clears it.
const CLEAR_SCREEN: &[u8] = b"\x1b[H\x1b[2J";

pub async fn run(args: List, session: &Session, out: Output) -> Result<(), CliError> {
    if !args.watch {
        return show(&args, session, out).await;
    }
    if !io::stdout().is_terminal() {
        return Err(CliError::NeedsTerminal("--watch"));
    }
    loop {
        match show(&args, session, out).await {
            Err(error) if error.is_outage() => eprint_note(&format!("dispatch: {error}")),
            shown => shown?,
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

async fn show(args: &List, session: &Session, mut out: Output) -> Result<(), CliError> {
    out.json |= args.output == Format::Json;
    let client = &session.client;
    let mut query = Query::new();
    if args.mine {
        let user = client.current_user().await?.uuid;
        query = query.filter("owner_uuid", "=", user.as_str());
    }
    if args.active {
        query = query.filter("state", "=", "Committed");
    }
    if let Some(name) = &args.name {
        query = query.like("name", name);
    }
    let now = Timestamp::now();
    if let Some(since) = args.since {
        let from = now.saturating_sub(since).unwrap_or(now);
        query = query.filter("created_at", ">=", from.to_string());
    }
    let limit = if args.all {
        usize::MAX
    } else {
        args.limit as usize
    };
    // The server keeps a job that was killed before it started, so these are selected here, too.
    let is_filtered_here = args.failed || args.active || !args.status.is_empty();
    let is_wanted = |job: &Job| {
        let state = job.state();
        let is_in_state = args.status.is_empty() || args.status.contains(&state);
        is_in_state && !(args.active && state.has_ended()) && (!args.failed || job.has_failed())
    };
    let is_wanted = is_filtered_here.then_some(&is_wanted as &dyn Fn(&Job) -> bool);
    let (jobs, available) = jobs::newest(client, query, limit, is_wanted).await?;
    let begin = || {
        if args.watch {
            out.bytes(CLEAR_SCREEN)?;
            let (time, interval) = (now.strftime("%F %T UTC"), WATCH_INTERVAL.as_secs());
            out.line(&format!("{time}, every {interval} s; Ctrl-C ends"))?;
        }
        if let Some(shortage) = session.local.as_ref().and_then(disk_usage::shortage) {
            eprint_note(&format!("dispatch: {shortage}"));
        }
        Ok::<(), CliError>(())
    };
    if args.output == Format::Ids {
        begin()?;
        jobs.iter().try_for_each(|job| out.line(&job.name()))?;
        note_rest(jobs.len(), available);
        return Ok(());
    }
    let names = OwnerNames::of(client, &jobs).await;
    let peaks = match args.usage {
        true => peaks(client, &jobs).await?,
        false => vec![None; jobs.len()],
    };
    let me = client.current_user().await?;
    begin()?;
    if out.json {
        let rows: Vec<Value> = jobs
            .iter()
            .zip(&peaks)
            .map(|(job, peak)| {
                let mut row = record(job, *peak, now);
                row["user"] = json!(names.user(job));
                row["project"] = json!(names.project(job));
                row
            })
            .collect();
        return out.json(&rows);
    }
    if jobs.is_empty() {
        eprint_note(&match is_filtered_here {
            false if !args.selects() => "no jobs; submit one with: dispatch submit".to_owned(),
            _ => "no such jobs".to_owned(),
        });
        return Ok(());
    }
    let mut header = vec![
        "ID", "NAME", "STATE", "EXIT", "PRIO", "CPUS", "MEM", "AGE", "TIME",
    ];
    if args.usage {
        header.push("PEAK MEM");
    }
    let is_wide = args.output == Format::Wide;
    if is_wide {
        header.extend(["SUBMITTED", "STARTED", "FINISHED"]);
    }
    // Most people see only jobs of their own, in no project.
    let mut users = jobs.iter().filter_map(user_uuid);
    let has_others = is_wide || users.any(|user| user != me.uuid.as_str());
    let has_projects = is_wide || jobs.iter().any(|job| project_uuid(job).is_some());
    for (is_shown, title) in [(has_others, "USER"), (has_projects, "PROJECT")] {
        if is_shown {
            header.push(title);
        }
    }
    header.push("UUID");
    let rows = jobs.iter().zip(&peaks).map(|(job, peak)| {
        let mut row = cells(job, now);
        if args.usage {
            row.push(peak.map(format_size).unwrap_or_default());
        }
        if is_wide {
            row.extend(times(job).map(|time| time.map_or(String::new(), |at| format!("{at:.0}"))));
        }
        let owners = [
            (has_others, names.user(job)),
            (has_projects, names.project(job)),
        ];
        let owners = owners.into_iter().filter(|(is_shown, _)| *is_shown);
        row.extend(owners.map(|(_, name)| shortened(&name.unwrap_or_default())));
        row.push(job.request.uuid.to_string());
        row
    });
    let rows = rows.collect();
    match args.output {
        Format::Wide => out.wide_table(&header, rows)?,
        _ => out.narrow_table(header, rows, drop_order(&jobs))?,
    }
    note_rest(jobs.len(), available);
    Ok(())
}

/// Says that there are more jobs than those that are shown.
fn note_rest(shown: usize, available: Option<usize>) {
    let of = match available {
        Some(available) if available <= shown => return,
        Some(available) => format!(" of {available} jobs"),
        None => " such jobs, the newest".to_owned(),
    };
    eprint_note(&format!("{shown}{of}; see more with --limit or --all"));
}

/// A job without a number is known by its uuid alone.
fn drop_order(jobs: &[Job]) -> &'static [&'static str] {
    match jobs.iter().all(|job| job.number.is_some()) {
        true => &DROP_ORDER,
        false => &DROP_ORDER[1..],
    }
}

/// Reads peak memory from the logs, a few at a time.
async fn peaks(client: &Client, jobs: &[Job]) -> Result<Vec<Option<u64>>, CliError> {
    const MAX_CONCURRENT_READS: usize = 8;
    let keep = &client.keep(client.keep_options().await?).await?;
    let reading = jobs.iter().map(|job| async move {
        job.verdict()?;
        let result = result_file::read(client, keep, job).await?;
        result_file::peak_memory(&result)
    });
    Ok(stream::iter(reading)
        .buffered(MAX_CONCURRENT_READS)
        .collect()
        .await)
}

fn cells(job: &Job, now: Timestamp) -> Vec<String> {
    let constraints = &job.request.runtime_constraints;
    let age = job.request.created_at.map(|made| time_between(made, now));
    vec![
        job.number.map_or_else(|| "-".to_owned(), |n| n.to_string()),
        shortened(&job.request.name),
        job.state().as_str().to_owned(),
        job.exit_code().map(|c| c.to_string()).unwrap_or_default(),
        job.request.priority.to_string(),
        constraints.vcpus.to_string(),
        format_size(constraints.ram),
        age.unwrap_or_default(),
        job.run_time(now).map(format_duration).unwrap_or_default(),
    ]
}

/// When it was submitted, and when its container started and finished.
fn times(job: &Job) -> [Option<Timestamp>; 3] {
    let container = job.container.as_ref();
    [
        job.request.created_at,
        container.and_then(|container| container.started_at),
        container.and_then(|container| container.finished_at),
    ]
}

fn record(job: &Job, peak: Option<u64>, now: Timestamp) -> Value {
    let [created_at, started_at, finished_at] = times(job);
    let mut row = summary(job);
    row["name"] = json!(job.request.name);
    row["priority"] = json!(job.request.priority);
    row["cpus"] = json!(job.request.runtime_constraints.vcpus);
    row["ram"] = json!(job.request.runtime_constraints.ram);
    row["created_at"] = json!(created_at);
    row["started_at"] = json!(started_at);
    row["finished_at"] = json!(finished_at);
    row["run_seconds"] = json!(job.run_time(now).map(|t| t.as_secs_f64()));
    row["peak_memory"] = json!(peak);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uuid_of_a_job_without_a_number_is_always_shown() {
        let job = |properties: Value| {
            let request = json!({
                "uuid": "zzzzz-xvhdp-0123456789abcde", "state": "Committed", "properties": properties,
            });
            Job::new(serde_json::from_value(request).unwrap(), None, "me")
        };
        let own = job(json!({"dispatch_id": 7, "dispatch_user": "me"}));
        assert!(drop_order(std::slice::from_ref(&own)).contains(&"UUID"));
        assert!(!drop_order(&[own, job(json!({}))]).contains(&"UUID"));
    }
}

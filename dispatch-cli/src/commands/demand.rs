//! `dispatch demand`: writes the number of workers that the queue could use, as a file for a
//! program that starts workers.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::Client;
use arvados_client::filter::Query;
use clap::Args;
use jiff::Timestamp;
use worker_demand::{Demand as File, Status, Worker, to_json, to_lisp};

use crate::error::CliError;
use crate::jobs;
use crate::printer::{Output, eprint_note};
use crate::session::Session;

/// Write how many workers the queue could use, for 'dispatch-overseer' or another autoscaler
///
/// Asks for one worker per pending container (Queued, priority above 0) that this token can read.
/// The file is the resource file of CL-MW, or with --json the same in JSON. It is replaced
/// atomically. During an outage of the server the file is not written, so its age shows the outage.
/// PROGRAM and ARGUMENTS are the command of a worker. They are in the file, visible to everybody
/// who can read it.
#[derive(Debug, Args)]
pub struct Demand {
    /// File to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Write the file again after each --interval, until interrupted
    #[arg(long, requires = "file")]
    pub watch: bool,
    /// Mark the file as finished and end when no container is pending or running
    #[arg(long, requires = "watch")]
    pub until_empty: bool,
    /// Interval between two writes of the file; the file contains it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Number of containers that one worker runs at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub per_worker: u64,
    /// Maximum number of workers to ask for
    #[arg(long, value_name = "N")]
    pub max_workers: Option<u32>,
    /// Member id in the file: the name of this queue
    #[arg(long, value_name = "NAME", default_value = "dispatch", value_parser = parse_name)]
    pub member_id: String,
    /// Shared library that a worker loads; may be given several times
    #[arg(long = "library", value_name = "PATH", value_parser = parse_path)]
    pub libraries: Vec<String>,
    /// Program of a worker
    #[arg(value_name = "PROGRAM", value_parser = parse_path)]
    pub program: String,
    /// Arguments of the program
    #[arg(
        value_name = "ARGUMENTS",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_parser = parse_argument
    )]
    pub arguments: Vec<String>,
}

/// Number of containers in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queue {
    waiting: u64,
    /// Pending, locked and running.
    wanted: u64,
}

pub async fn run(args: Demand, session: &Session, out: Output) -> Result<(), CliError> {
    let mut is_outage = false;
    loop {
        let queue = match count_queue(&session.client).await {
            Err(failure) if args.watch && failure.is_outage() => {
                if !is_outage {
                    eprint_note(&format!(
                        "dispatch: {failure}; the file is not written until the server is back"
                    ));
                }
                is_outage = true;
                tokio::time::sleep(args.interval).await;
                continue;
            }
            counted => counted?,
        };
        if is_outage {
            eprint_note("dispatch: the server is back");
            is_outage = false;
        }
        let file = args.demand(queue, Timestamp::now());
        let text = match out.json {
            true => to_json(&file).map_err(|error| CliError::Output(error.into()))?,
            false => to_lisp(&file),
        };
        match &args.file {
            None => out.bytes(text.as_bytes())?,
            Some(path) => replace(path, &text).map_err(CliError::write(path))?,
        }
        if !args.watch || file.status == Status::Finished {
            return Ok(());
        }
        tokio::time::sleep(args.interval).await;
    }
}

impl Demand {
    fn demand(&self, queue: Queue, now: Timestamp) -> File {
        let needed = u32::try_from(queue.waiting.div_ceil(self.per_worker)).unwrap_or(u32::MAX);
        File {
            status: match self.until_empty && queue.wanted == 0 {
                true => Status::Finished,
                false => Status::InProgress,
            },
            written_at: u64::try_from(now.as_second()).unwrap_or(0),
            member_id: self.member_id.clone(),
            update_interval: self.interval.as_secs(),
            needed: needed.min(self.max_workers.unwrap_or(u32::MAX)),
            worker: Worker {
                program: self.program.clone(),
                libraries: self.libraries.clone(),
                arguments: self.arguments.clone(),
            },
        }
    }
}

async fn count_queue(client: &Client) -> Result<Queue, CliError> {
    let some = async |states: &[&str]| {
        let query = Query::new().filter("state", "in", states);
        let counted = jobs::count(client, "containers", query.filter("priority", ">", 0));
        counted.await?.ok_or(CliError::NoCount)
    };
    // One query for all states, so that a container that changes its state is counted.
    let (waiting, wanted) =
        tokio::try_join!(some(&["Queued"]), some(&["Queued", "Locked", "Running"]))?;
    Ok(Queue { waiting, wanted })
}

/// Replaces the file atomically: a reader gets the old or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut new = tempfile::Builder::new()
        .prefix(".demand-")
        .permissions(std::fs::Permissions::from_mode(0o644))
        .tempfile_in(dir.unwrap_or(Path::new(".")))?;
    new.write_all(text.as_bytes())?;
    new.persist(path)?;
    Ok(())
}

/// Checks an argument. What a reader of the file would refuse is refused here already.
fn parse_argument(text: &str) -> Result<String, String> {
    match text.chars().any(char::is_control) {
        true => Err("it contains a control character".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("it is empty".to_owned()),
        false => parse_argument(text),
    }
}

fn parse_path(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => parse_argument(text),
        false => Err("it is not an absolute path, but other machines use it, too".to_owned()),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = units::parse_whole_seconds(text).map_err(|error| error.to_string())?;
    match (1..=7 * 86_400).contains(&time.as_secs()) {
        true => Ok(time),
        false => Err("it is not between a second and a week".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        demand: Demand,
    }

    fn parse(line: &str) -> Result<Demand, String> {
        let words = std::iter::once("demand").chain(line.split(' '));
        let parsed = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(parsed.demand)
    }

    fn file(line: &str, waiting: u64, wanted: u64) -> File {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        parse(line).unwrap().demand(Queue { waiting, wanted }, now)
    }

    #[test]
    fn as_many_workers_as_wait_and_no_more_than_may_be() {
        for (line, waiting, needed) in [
            ("/w", 0, 0),
            ("/w", 7, 7),
            ("--per-worker 4 /w", 7, 2),
            ("--per-worker 4 /w", 8, 2),
            ("--max-workers 3 /w", 7, 3),
            ("--max-workers 3 /w", 2, 2),
            ("/w", u64::MAX, u32::MAX),
        ] {
            assert_eq!(file(line, waiting, 1).needed, needed, "{line} {waiting}");
        }
    }

    #[test]
    fn demand_is_finished_only_where_that_was_requested() {
        let watch = "--file f --watch --until-empty /w";
        for (line, waiting, wanted, status) in [
            ("/w", 0, 0, Status::InProgress),
            (watch, 0, 0, Status::Finished),
            (watch, 1, 1, Status::InProgress),
            (watch, 0, 1, Status::InProgress),
        ] {
            assert_eq!(file(line, waiting, wanted).status, status, "{line}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let line = "--member-id 12.0 --interval 90s --library /l/a.so /w --mw-slave --json -- -x";
        let file = file(line, 3, 0);
        assert_eq!(file.worker.arguments, ["--mw-slave", "--json", "--", "-x"]);
        assert_eq!(File::read(to_lisp(&file).as_bytes()), Ok(file.clone()));
        assert_eq!(File::read(to_json(&file).unwrap().as_bytes()), Ok(file));
    }

    #[test]
    fn what_could_not_be_read_is_refused() {
        for (line, words) in [
            ("w", "not an absolute path"),
            ("/w a\nb", "control character"),
            ("--member-id= /w", "it is empty"),
            ("--interval 500ms /w", "time"),
            ("--interval 2w /w", "between a second and a week"),
            ("--per-worker 0 /w", "0"),
            ("--watch /w", "--file"),
            ("--file f --until-empty /w", "--watch"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn a_file_is_replaced_at_once_and_others_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("demand.rsc");
        for text in ["first", "second"] {
            replace(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        replace(Path::new("/no/such/file"), "x").unwrap_err();
    }
}

//! `dispatch priority`: changes the order of jobs.

use clap::Args;
use serde_json::json;

use crate::error::CliError;
use crate::exit::Exit;
use crate::job::{HELD_PRIORITY_PROPERTY, JobState};
use crate::jobs;
use crate::printer::Output;
use crate::selection::{Scope, Selection};
use crate::session::Session;
use crate::text::plural;

/// Change the priority of jobs that have not ended
///
/// A held job gets it when it is released.
#[derive(Debug, Args)]
pub struct Priority {
    /// The new priority; jobs with a higher one start first
    #[arg(value_name = "PRIORITY", value_parser = parse)]
    pub priority: i64,
    #[command(flatten)]
    pub selection: Selection,
}

fn parse(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(0) => Err("use 'dispatch hold' for a job that shall not start".to_owned()),
        Ok(priority @ 1..=1000) => Ok(priority),
        _ => Err("write a number from 1 to 1000".to_owned()),
    }
}

pub async fn run(args: Priority, session: &Session, out: Output) -> Result<Exit, CliError> {
    let client = &session.client;
    let jobs = args.selection.find(client, Scope::Open).await?;
    let mut exit = Exit::Ok;
    let mut left_alone = 0;
    let mut changed = 0;
    for job in jobs {
        if job.state() == JobState::Held {
            let mut properties = job.properties();
            properties.insert(HELD_PRIORITY_PROPERTY.to_owned(), args.priority.into());
            jobs::set_properties(client, &job, properties).await?;
            changed += 1;
            continue;
        }
        if !job.state().is_active() {
            exit = exit.or(args.selection.leave_alone(&job));
            left_alone += 1;
            continue;
        }
        match jobs::set_priority(client, &job, args.priority).await? {
            true => changed += 1,
            false => exit = exit.or(args.selection.leave_alone(&job)),
        }
    }
    args.selection.sum_up(left_alone);
    let note = format!("priority {} for {}", args.priority, plural(changed, "job"));
    out.json_or_note(&json!({"changed": changed}), &note)?;
    Ok(exit)
}

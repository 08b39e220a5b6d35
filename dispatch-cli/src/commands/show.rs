//! `dispatch show`: prints all details of one job.

use arvados_client::records::{Mount, MountKind};
use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use crate::completion;
use crate::earlier_containers;
use crate::error::CliError;
use crate::job::{Job, RETRIED_PROPERTY, RETRY_OF_PROPERTY};
use crate::job_id::JobId;
use crate::jobs;
use crate::owners::OwnerNames;
use crate::printer::Output;
use crate::result_file::{self, ResultFile};
use crate::session::Session;
use crate::text::{plural, strip_control};
use units::{format_duration, format_size};

/// Show all details of a job
#[derive(Debug, Args)]
pub struct Show {
    /// Number, uuid or name of the job; of several with this name, the newest
    #[arg(value_name = "ID", value_parser = JobId::or_name, add = completion::job_numbers())]
    pub job: JobId,
}

pub async fn run(args: Show, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let job = jobs::find(client, &args.job).await?;
    let result = match job.verdict() {
        Some(_) => {
            let keep = client.keep(client.keep_options().await?).await?;
            result_file::read(client, &keep, &job).await
        }
        None => None,
    };
    if out.json {
        return out.json(&json!({
            "id": job.number,
            "state": job.state().as_str(),
            "exit_code": job.exit_code(),
            "request": job.request,
            "container": job.container,
            "result": result.as_ref().map(ResultFile::value),
        }));
    }
    let names = OwnerNames::of(client, std::slice::from_ref(&job)).await;
    let mut rows = rows(&job, &names, result.as_ref(), Timestamp::now());
    for (title, property) in [
        ("Retry of", RETRY_OF_PROPERTY),
        ("Retried as", RETRIED_PROPERTY),
    ] {
        let other = jobs::name_in(client, &job, property).await;
        rows.extend(other.map(|other| (title, format!("job {other}"))));
    }
    let earlier = earlier_containers::lines(client, &job).await;
    if !earlier.is_empty() {
        rows.push(("Earlier ones", earlier.join("\n")));
    }
    let width = rows.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    for (key, value) in rows {
        // Further lines of a value are indented like the first.
        let value = strip_control(&value).replace('\n', &format!("\n{:width$}  ", ""));
        out.line(&format!("{key:width$}  {value}"))?;
    }
    Ok(())
}

fn rows(
    job: &Job,
    names: &OwnerNames,
    result: Option<&ResultFile>,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let mut rows: Vec<(&'static str, String)> = Vec::new();
    let mut row = |key, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            rows.push((key, value));
        }
    };
    let request = &job.request;
    let container = job.container.as_ref();
    let status = container.map(|c| &c.runtime_status);
    let time = |time: Option<Timestamp>| time.map(|t| format!("{t:.0}"));
    row("Job", job.number.map(|n| n.to_string()));
    row("Name", Some(request.name.clone()));
    row("State", Some(job.state().as_str().to_owned()));
    row("User", names.user(job));
    row("Project", names.project(job));
    row("Activity", status.and_then(|s| s.activity.clone()));
    row("Exit code", job.exit_code().map(|c| c.to_string()));
    row("Error", status.and_then(|s| s.error.clone()));
    row(
        "Detail",
        status.and_then(|s| Some(without_uuid(s.error_detail.as_deref()?, job))),
    );
    row("Warning", status.and_then(|s| s.warning.clone()));
    row(
        "Warning detail",
        status.and_then(|s| s.warning_detail.clone()),
    );
    row("Request", Some(request.uuid.to_string()));
    row(
        "Container",
        request.container_uuid.as_ref().map(ToString::to_string),
    );
    if request.container_count > 1 {
        row(
            "Containers",
            Some(format!(
                "{} (the earlier ones were cancelled)",
                request.container_count
            )),
        );
    }
    row("Priority", Some(request.priority.to_string()));
    let image = &request.container_image;
    let used = job.container.as_ref().map(|c| &c.container_image);
    row(
        "Image",
        Some(match used.filter(|used| *used != image) {
            Some(used) if !used.is_empty() => format!("{image} ({used})"),
            _ => image.clone(),
        }),
    );
    row(
        "Command",
        Some(
            request
                .command
                .iter()
                .map(|a| quoted(a))
                .collect::<Vec<_>>()
                .join(" "),
        ),
    );
    let environment: Vec<String> = request
        .environment
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    row("Environment", Some(environment.join("\n")));
    row("Needs", Some(needs(job)));
    let mounts: Vec<String> = request
        .mounts
        .iter()
        .map(|(target, m)| format!("{target}: {}", mount(m)))
        .collect();
    row("Mounts", Some(mounts.join("\n")));
    row("Submitted", time(request.created_at));
    row("Started", time(container.and_then(|c| c.started_at)));
    row("Finished", time(container.and_then(|c| c.finished_at)));
    row("Ran for", job.run_time(now).map(format_duration));
    row(
        "CPU time",
        result
            .and_then(ResultFile::cpu_seconds)
            .map(|s| format!("{s:.2} s")),
    );
    row(
        "Peak memory",
        result.and_then(ResultFile::peak_memory).map(format_size),
    );
    let output = container
        .and_then(|c| c.output.as_ref())
        .map(ToString::to_string);
    row(
        "Output",
        request
            .output_uuid
            .as_ref()
            .map(ToString::to_string)
            .or(output),
    );
    row("Log", request.log_uuid.as_ref().map(ToString::to_string));
    rows
}

/// Details without the container's uuid, which begins each line of a log.
fn without_uuid(detail: &str, job: &Job) -> String {
    let uuid = job
        .request
        .container_uuid
        .as_ref()
        .map(|uuid| format!("{uuid} "));
    let lines = detail.trim_end().lines();
    let lines = lines.map(|line| match &uuid {
        Some(uuid) => line.replacen(uuid.as_str(), "", 1),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn needs(job: &Job) -> String {
    let needs = &job.request.runtime_constraints;
    let mut parts = vec![
        plural(needs.vcpus.into(), "CPU"),
        format!("{} memory", format_size(needs.ram)),
    ];
    let scratch: u64 = job
        .request
        .mounts
        .values()
        .filter(|m| m.kind == MountKind::Tmp)
        .map(|m| m.capacity)
        .sum();
    if scratch > 0 {
        parts.push(format!("{} scratch", format_size(scratch)));
    }
    if needs.gpu.device_count > 0 {
        parts.push(format!(
            "{} ({})",
            plural(needs.gpu.device_count.into(), "GPU"),
            needs.gpu.stack
        ));
    }
    if needs.api {
        parts.push("network and API".to_owned());
    }
    let longest = job.request.scheduling_parameters.max_run_time;
    if longest > 0 {
        parts.push(format!(
            "at most {}",
            format_duration(std::time::Duration::from_secs(longest))
        ));
    }
    parts.join(", ")
}

fn mount(mount: &Mount) -> String {
    let path = match mount.path.as_str() {
        "" => String::new(),
        path => format!(":{path}"),
    };
    match mount.kind {
        MountKind::Collection if !mount.portable_data_hash.is_empty() => {
            format!("{}{path}", mount.portable_data_hash)
        }
        MountKind::Collection => format!("{}{path}", mount.uuid),
        MountKind::Tmp => format!("{} for the job to write to", format_size(mount.capacity)),
        MountKind::File => mount.path.clone(),
        ref kind => kind.to_string(),
    }
}

/// Quotes for a shell, so that the line can be pasted.
fn quoted(text: &str) -> String {
    let simple = !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c));
    match simple {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted() {
        let rows = [
            ("a/b", "a/b"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("$x", "'$x'"),
        ];
        for (text, shell) in rows {
            assert_eq!(quoted(text), shell);
        }
    }
}

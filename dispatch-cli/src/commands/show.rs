//! `dispatch show`: prints all details of one job.

use std::time::Duration;

use arvados_client::records::{Mount, MountKind, RuntimeStatus};
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::env::quote;
use crate::completion;
use crate::earlier_containers;
use crate::error::CliError;
use crate::job::{Job, RETRIED_PROPERTY, RETRY_OF_PROPERTY};
use crate::job_id::JobId;
use crate::jobs;
use crate::local_status::Resources;
use crate::owners::OwnerNames;
use crate::printer::Output;
use crate::result_file;
use crate::session::Session;
use crate::text::plural;
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
            "result": result,
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
        let value = value.replace('\n', &format!("\n{:width$}  ", ""));
        out.line(&format!("{key:width$}  {value}"))?;
    }
    Ok(())
}

fn rows(
    job: &Job,
    names: &OwnerNames,
    result: Option<&Value>,
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
    let told = |text: fn(&RuntimeStatus) -> &Option<String>| text(status?).clone();
    row("Job", job.number.map(|n| n.to_string()));
    row("Name", Some(request.name.clone()));
    row("State", Some(job.state().as_str().to_owned()));
    row("User", names.user(job));
    row("Project", names.project(job));
    row("Activity", told(|status| &status.activity));
    row("Exit code", job.exit_code().map(|c| c.to_string()));
    row("Error", told(|status| &status.error));
    let detail = told(|status| &status.error_detail);
    row("Detail", detail.map(|detail| without_uuid(&detail, job)));
    row("Warning", told(|status| &status.warning));
    row("Warning detail", told(|status| &status.warning_detail));
    row("Request", Some(request.uuid.to_string()));
    let container_uuid = request.container_uuid.as_ref();
    row("Container", container_uuid.map(ToString::to_string));
    if request.container_count > 1 {
        let count = request.container_count;
        let count = format!("{count} (the earlier ones were cancelled)");
        row("Containers", Some(count));
    }
    row("Priority", Some(request.priority.to_string()));
    let image = &request.container_image;
    let image = match container.map(|c| &c.container_image) {
        Some(used) if used != image && !used.is_empty() => format!("{image} ({used})"),
        _ => image.clone(),
    };
    row("Image", Some(image));
    let command: Vec<String> = request.command.iter().map(|a| quote(a)).collect();
    row("Command", Some(command.join(" ")));
    let environment = request.environment.iter();
    let environment: Vec<String> = environment.map(|(k, v)| format!("{k}={v}")).collect();
    row("Environment", Some(environment.join("\n")));
    row("Needs", Some(needs(job).join(", ")));
    let mounts = request.mounts.iter();
    let mounts = mounts.map(|(target, m)| format!("{target}: {}", mount(m)));
    row("Mounts", Some(mounts.collect::<Vec<_>>().join("\n")));
    row("Submitted", time(request.created_at));
    row("Started", time(container.and_then(|c| c.started_at)));
    row("Finished", time(container.and_then(|c| c.finished_at)));
    row("Ran for", job.run_time(now).map(format_duration));
    let cpu_seconds = result.and_then(|result| result.get("cpu_seconds")?.as_f64());
    row("CPU time", cpu_seconds.map(|s| format!("{s:.2} s")));
    let peak = result.and_then(result_file::peak_memory);
    row("Peak memory", peak.map(format_size));
    let own = request.output_uuid.as_ref().map(ToString::to_string);
    let content = container.and_then(|c| c.output.as_ref());
    row("Output", own.or(content.map(ToString::to_string)));
    row("Log", request.log_uuid.as_ref().map(ToString::to_string));
    rows
}

/// Details without the container's uuid, which begins each line of a log.
fn without_uuid(detail: &str, job: &Job) -> String {
    let uuid = job.request.container_uuid.as_ref();
    let begin = uuid.map(|uuid| format!("{uuid} ")).unwrap_or_default();
    let lines = detail.trim_end().lines();
    let lines = lines.map(|line| line.replacen(&begin, "", 1));
    lines.collect::<Vec<_>>().join("\n")
}

/// What the job requests, part by part.
pub fn needs(job: &Job) -> Vec<String> {
    let needs = &job.request.runtime_constraints;
    let mut parts = vec![
        plural(needs.vcpus.into(), "CPU"),
        format!("{} memory", format_size(needs.ram)),
    ];
    let scratch = Resources::of_request(&job.request).scratch;
    if scratch > 0 {
        parts.push(format!("{} scratch", format_size(scratch)));
    }
    if needs.gpu.device_count > 0 {
        let gpus = plural(needs.gpu.device_count.into(), "GPU");
        let targets = needs.gpu.hardware_target.join(" ");
        let kind = format!("{} {targets}", needs.gpu.stack);
        parts.push(format!("{gpus} ({})", kind.trim_end()));
    }
    if needs.api {
        parts.push("network and API".to_owned());
    }
    let longest = job.request.scheduling_parameters.max_run_time;
    if longest > 0 {
        let longest = format_duration(Duration::from_secs(longest));
        parts.push(format!("at most {longest}"));
    }
    parts
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

//! Makes a container request from flags, uploads its inputs, and puts it into the queue.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};

use arvados_client::Client;
use arvados_client::error::StatusCode;
use arvados_client::records::ContainerRequest;
use serde_json::{Map, Value, json};

use crate::collection_name;
use crate::error::CliError;
use crate::image::store;
use crate::input_mount;
use crate::input_spec::{self, InputSpec, InputSpecError, Source};
use crate::job::{Job, number_of};
use crate::job_flags::JobFlags;
use crate::job_numbers;
use crate::job_output;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::supervise::engine_check;

/// Flags that were checked completely before anything is sent.
struct Plan {
    environment: BTreeMap<String, String>,
    output_path: String,
    inputs: Vec<InputSpec>,
    stdin: Option<Stdin>,
}

enum Stdin {
    Piped,
    Source(Source),
}

fn plan(args: &JobFlags) -> Result<Plan, CliError> {
    let mut environment = BTreeMap::new();
    for pair in &args.env {
        let (name, value) = pair
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| CliError::BadEnv(pair.clone()))?;
        environment.insert(name.to_owned(), value.to_owned());
    }
    let output_path = input_spec::output_path(&args.output_path)?;
    let inputs = args
        .input
        .iter()
        .map(|text| text.parse())
        .collect::<Result<Vec<InputSpec>, InputSpecError>>()?;
    input_spec::check_targets(&inputs, &output_path)?;
    let stdin = match args.stdin.as_deref() {
        None => None,
        Some("-") => Some(Stdin::Piped),
        Some(what) => Some(Stdin::Source(Source::parse(what)?)),
    };
    Ok(Plan {
        environment,
        output_path,
        inputs,
        stdin,
    })
}

impl Plan {
    fn uploads(&self) -> bool {
        let mut inputs = self.inputs.iter().map(|input| &input.source);
        inputs.any(|source| matches!(source, Source::Local(_)))
            || matches!(
                self.stdin,
                Some(Stdin::Piped | Stdin::Source(Source::Local(_)))
            )
    }
}

/// Submits the job.
pub async fn submit(args: &JobFlags, session: &Session) -> Result<Job, CliError> {
    let client = &session.client;
    let plan = plan(args)?;
    let image = store::container_image(client, &args.image).await?;
    if plan.uploads() {
        store::check_exists(client, &image).await?;
    }
    let name = args.name.clone().unwrap_or_else(|| {
        let program = args.command[0].rsplit('/').next();
        program.unwrap_or_default().to_owned()
    });
    let mounts = mounts(client, args, &plan, &name).await?;
    let mut attributes = attributes(args, &plan, &name, &image, mounts);
    let default = session.local.as_ref().map(|_| 0);
    if let Some(retries) = args.retries.or(default) {
        attributes["container_count_max"] = json!(retries + 1);
    }
    let job = commit_numbered(client, attributes, &args.image).await?;
    let warning = session
        .local
        .as_ref()
        .and_then(|state| engine_check::warning(state, args.cpus));
    // A script that submits many jobs has read it before.
    if let Some(warning) = warning.filter(|_| io::stderr().is_terminal()) {
        eprint_note(&format!("dispatch: {warning}"));
    }
    Ok(job)
}

/// Commits a request with the next number of the user.
pub async fn commit_numbered(
    client: &Client,
    mut attributes: Value,
    image: &str,
) -> Result<Job, CliError> {
    let user = client.current_user().await?.uuid.to_string();
    if job_numbers::are_given(client).await? {
        let request = commit(client, attributes, image).await?;
        return Ok(Job::new(request, None, &user));
    }
    let number = job_numbers::next_number(client, &user).await?;
    attributes["properties"] = job_numbers::number_properties(&user, number);
    let request = commit(client, attributes, image).await?;
    let number = match number_of(&request, &user) {
        Some(number) => match job_numbers::resolve_number_conflict(client, &user, &request).await {
            Ok(number) => number,
            // The job is in the queue, which must be printed whatever happens to its number.
            Err(failure) => {
                eprint_note(&format!(
                    "dispatch: job {number} is queued, but its number may not be its own: {failure}"
                ));
                None
            }
        },
        None => None,
    };
    let mut job = Job::new(request, None, &user);
    job.number = number;
    Ok(job)
}

pub fn announce(job: &Job, out: Output) -> Result<(), CliError> {
    match (out.json, job.number) {
        (true, number) => out.json(&json!({
            "id": number, "uuid": job.request.uuid, "container_uuid": job.request.container_uuid,
        })),
        (false, Some(number)) => out.line(&format!("{number} {}", job.request.uuid)),
        (false, None) => out.line(&format!("- {}", job.request.uuid)),
    }
}

/// Everything but the number.
fn attributes(args: &JobFlags, plan: &Plan, name: &str, image: &str, mounts: Value) -> Value {
    let mut constraints = json!({"vcpus": args.cpus, "ram": args.memory, "API": args.network});
    if let Some(gpus) = &args.gpus {
        constraints["gpu"] = gpus.constraint(&args.gpu_target);
    }
    let mut scheduling = Map::new();
    if let Some(time) = args.time {
        scheduling.insert("max_run_time".into(), json!(time.as_secs()));
    }
    if !args.partition.is_empty() {
        scheduling.insert("partitions".into(), json!(args.partition));
    }
    if args.preemptible {
        scheduling.insert("preemptible".into(), json!(true));
    }
    let cwd = args.workdir.as_ref().unwrap_or(&plan.output_path);
    json!({
        "name": name, "state": "Committed", "priority": args.priority, "use_existing": args.reuse,
        "container_image": image, "command": args.command, "cwd": cwd, "environment": plan.environment,
        "output_path": plan.output_path, "mounts": mounts,
        "output_name": collection_name::from_text(&format!("Output of {name}")),
        "runtime_constraints": constraints, "scheduling_parameters": scheduling,
    })
}

async fn mounts(
    client: &Client,
    args: &JobFlags,
    plan: &Plan,
    name: &str,
) -> Result<Value, CliError> {
    let mut mounts = Map::new();
    mounts.insert(
        plan.output_path.clone(),
        json!({"kind": "tmp", "capacity": args.scratch}),
    );
    for input in &plan.inputs {
        let title = collection_name::from_text(&format!("Input {} of {name}", input.name()));
        let source = job_output::resolve(client, &input.source).await?;
        let mount = input_mount::from_source(client, &source, &title).await?;
        mounts.insert(input.target.clone(), mount);
    }
    let title = collection_name::from_text(&format!("Standard input of {name}"));
    let stdin = match &plan.stdin {
        None => return Ok(Value::Object(mounts)),
        Some(Stdin::Piped) => input_mount::from_stdin(client, &title).await?,
        Some(Stdin::Source(source)) => {
            let given = args.stdin.as_deref().unwrap_or_default();
            let source = job_output::resolve(client, source).await?;
            input_mount::check_one_file(client, &source, given).await?;
            input_mount::from_source(client, &source, &title).await?
        }
    };
    mounts.insert("stdin".into(), stdin);
    Ok(Value::Object(mounts))
}

/// Commits the request. A server whose vocabulary does not allow job numbers gets the job without
/// one.
async fn commit(
    client: &Client,
    mut attributes: Value,
    image: &str,
) -> Result<ContainerRequest, CliError> {
    loop {
        let error = match client.create_container_request(attributes.clone()).await {
            Ok(request) => return Ok(request),
            Err(error) => error,
        };
        let refused = matches!(
            error.status(),
            Some(StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST)
        );
        if error.is_ambiguous() {
            return Err(CliError::MaybeSubmitted(error.to_string()));
        }
        if !refused {
            return Err(error.into());
        }
        let message = error.to_string();
        let lower = message.to_lowercase();
        if lower.contains("vocabulary") && !attributes["properties"].is_null() {
            eprint_note(
                "dispatch: this server's vocabulary does not allow job numbers; use the uuid",
            );
            attributes["properties"] = Value::Null;
            continue;
        }
        if lower.contains("image") && lower.contains("not found") {
            return Err(store::missing(client, image).await);
        }
        return Err(CliError::Refused(message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parse(flags: &[&str]) -> Result<JobFlags, clap::Error> {
        let line = ["dispatch", "submit", "--image", "i"].iter().chain(flags);
        match Cli::try_parse_from(line.chain(&["--", "/bin/echo", "--x"]))?.command {
            Command::Submit(submit) => Ok(submit.job),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_become_a_request() {
        let args = parse(&[
            "--cpus",
            "2",
            "--memory",
            "1GiB",
            "--gpus",
            "2",
            "--time",
            "1h",
            "--env",
            "A=b=c",
            "--network",
            "--scratch",
            "2GiB",
        ])
        .unwrap();
        let plan = plan(&args).unwrap();
        let request = attributes(&args, &plan, "echo", "i", json!({}));
        let constraints = &request["runtime_constraints"];
        assert_eq!(constraints["vcpus"], 2);
        assert_eq!(constraints["ram"], 1u64 << 30);
        assert_eq!(constraints["API"], true);
        assert_eq!(constraints["gpu"]["device_count"], 2);
        assert_eq!(request["scheduling_parameters"]["max_run_time"], 3600);
        assert_eq!(request["environment"], json!({"A": "b=c"}));
        assert_eq!(request["command"], json!(["/bin/echo", "--x"]));
        assert_eq!(request["use_existing"], false);
        assert_eq!(request["cwd"], request["output_path"]);
        assert_eq!(request["output_name"], "Output of echo");
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_sent() {
        for (flags, word) in [
            (&["--memory", "4"][..], "write 4GiB"),
            (&["--memory", "3M"], "write at least 6 MiB"),
            (&["--time", "4"], "write 4s"),
            (&["--gpus", "0"], "cuda:2"),
            (&["--gpus", "opencl:1"], "cuda:2"),
            (&["--gpu-target", "8.0"], "--gpus"),
            (&["--workdir", "data"], "/data"),
            (&["--cpus", "0"], "whole CPUs, at least 1"),
            (&["--cpus", "0.5"], "whole CPUs, at least 1"),
            (&["--priority", "1001"], "1000"),
        ] {
            let message = parse(flags).unwrap_err().to_string();
            assert!(message.contains(word), "{flags:?}: {message}");
        }
        for flags in [
            &["--env", "A"][..],
            &["--input", "a"],
            &["--output-path", "x"],
        ] {
            assert!(plan(&parse(flags).unwrap()).is_err(), "{flags:?}");
        }
    }
}

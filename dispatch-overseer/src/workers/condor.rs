//! Worker jobs in HTCondor. A start is one `condor_submit`; jobs are found again by attributes of
//! their ads.

use dispatch_core::scheduler::class_ads::{self, ClassAd};
use dispatch_core::scheduler::command::CommandFailure;
use serde::Deserialize;
use worker_demand::Worker;

use super::{BackendError, SchedulerJobs, StartError, WorkerBackend};
use crate::job::{Job, State};

/// Attribute that holds the label of the overseer.
const LABEL_ATTRIBUTE: &str = "DispatchOverseer";
/// Attribute that holds the hash of the worker command.
const HASH_ATTRIBUTE: &str = "DispatchWorkerMark";
const ATTRIBUTES: &str =
    "ClusterId,ProcId,JobStatus,JobCurrentStartDate,HoldReason,DispatchWorkerMark";
/// Maximum number of jobs per `condor_rm`.
const MAX_JOBS_PER_REMOVAL: usize = 500;

/// HTCondor, through its commands in PATH.
#[derive(Debug)]
pub struct Condor(pub SchedulerJobs);

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct JobAd {
    cluster_id: u64,
    proc_id: u64,
    job_status: i64,
    job_current_start_date: Option<u64>,
    hold_reason: Option<String>,
    #[serde(rename = "DispatchWorkerMark")]
    command_hash: String,
}

impl Condor {
    fn submit_description(&self, count: u32, worker: &Worker) -> Result<String, String> {
        let logs = escape_macros("the directory", &self.0.logs.to_string_lossy())?;
        let program = escape_macros("the program", &worker.program)?;
        let libraries: Vec<String> = worker
            .libraries
            .iter()
            .map(|path| match path.contains(',') {
                true => Err(format!(
                    "HTCondor cannot transfer {path:?}: a comma is in its name"
                )),
                false => escape_macros("a library", path),
            })
            .collect::<Result<_, _>>()?;
        let mut arguments = Vec::new();
        for argument in &worker.arguments {
            let word = escape_macros("an argument", argument)?;
            arguments.push(format!("'{}'", word.replace('\'', "''")));
        }
        let arguments = arguments.join(" ").replace('"', "\"\"");
        let mut lines = vec![
            "universe = vanilla".to_owned(),
            format!("executable = {program}"),
            format!("arguments = \"{arguments}\""),
            "should_transfer_files = YES".to_owned(),
            "when_to_transfer_output = ON_EXIT".to_owned(),
            "transfer_output_files = \"\"".to_owned(),
            format!("output = {logs}/$(Cluster).$(Process).log"),
            format!("error = {logs}/$(Cluster).$(Process).log"),
            format!("request_cpus = {}", self.0.cpus),
            format!("request_memory = {}", self.0.memory_mib),
            "notification = never".to_owned(),
            // However a worker ends, only the demand file decides about a replacement.
            "on_exit_remove = true".to_owned(),
        ];
        if !libraries.is_empty() {
            lines.push(format!("transfer_input_files = {}", libraries.join(",")));
        }
        for line in &self.0.submit_options {
            if line.contains(['\n', '\r', '\0']) {
                return Err(format!("the submit line {line:?} is not one line"));
            }
            lines.push(line.clone());
        }
        // Last, so that no extra line overrides them: the job is found again by these.
        lines.push(format!("+{LABEL_ATTRIBUTE} = \"{}\"", self.0.label));
        lines.push(format!("+{HASH_ATTRIBUTE} = \"{}\"", worker.command_hash()));
        lines.push(format!("queue {count}"));
        Ok(lines.join("\n") + "\n")
    }

    /// Constraints for those of `jobs` that have not started. The schedd leaves out a job that has
    /// started since the listing. Each constraint is one argument of at most 128 KiB, the limit of
    /// the kernel.
    fn idle_constraints(&self, jobs: &[String]) -> Vec<String> {
        let constraint = |some: &[String]| {
            let those: Vec<String> = some
                .iter()
                .filter_map(|id| id.split_once('.'))
                .map(|(cluster, process)| format!("ClusterId == {cluster} && ProcId == {process}"))
                .collect();
            format!(
                "{LABEL_ATTRIBUTE} == \"{}\" && (JobStatus == 1 || JobStatus == 5) && ({})",
                self.0.label,
                those.join(" || ")
            )
        };
        jobs.chunks(MAX_JOBS_PER_REMOVAL).map(constraint).collect()
    }
}

/// Escapes the dollars of a text for a submit description, where a dollar begins a macro.
fn escape_macros(what: &str, text: &str) -> Result<String, String> {
    // HTCondor expands $$ when the job is matched. $(DOLLAR)$(DOLLAR) does not prevent that: the
    // second one is then expanded as a name.
    if text.contains("$$") {
        return Err(format!(
            "{what} {text:?} holds $$, which HTCondor would fill in"
        ));
    }
    if text.ends_with('\\') {
        return Err(format!(
            "{what} {text:?} ends with a backslash, which would join it with the next line"
        ));
    }
    match text.chars().any(char::is_control) {
        true => Err(format!("{what} {text:?} holds a control character")),
        false => Ok(text.replace('$', "$(DOLLAR)")),
    }
}

fn parse(listing: &str) -> Result<Vec<Job>, BackendError> {
    let ads = class_ads::parse(listing)
        .map_err(|error| BackendError(format!("condor_q did not write a list of jobs: {error}")))?;
    let mut ads: Vec<JobAd> = ads.into_iter().map(ClassAd::read_leniently).collect();
    ads.sort_by_key(|ad| (ad.cluster_id, ad.proc_id));
    Ok(ads.into_iter().filter_map(to_job).collect())
}

/// `None` for a job that has ended.
fn to_job(ad: JobAd) -> Option<Job> {
    let id = format!("{}.{}", ad.cluster_id, ad.proc_id);
    let state = match ad.job_status {
        1 => State::Idle,
        3 => State::Leaving,
        4 => return None,
        5 => State::Idle,
        _ => State::Busy,
    };
    Some(Job {
        id,
        started_at: ad.job_current_start_date.filter(|_| state != State::Idle),
        held: (ad.job_status == 5).then(|| ad.hold_reason.unwrap_or_default()),
        state,
        command_hash: ad.command_hash,
    })
}

impl WorkerBackend for Condor {
    async fn list(&self) -> Result<Vec<Job>, BackendError> {
        let constraint = format!("{LABEL_ATTRIBUTE} == \"{}\"", self.0.label);
        let command = self.0.command("condor_q").args(["-json", "-attributes"]);
        let command = command.args([ATTRIBUTES, "-constraint", &constraint]);
        let answer = command.run_checked().await?;
        match class_ads::has_no_answer(&answer) {
            true => Err(BackendError(answer.stderr)),
            false => parse(&answer.into_stdout("condor_q")),
        }
    }

    async fn start(&self, count: u32, worker: &Worker) -> Result<(), StartError> {
        let description = self
            .submit_description(count, worker)
            .map_err(StartError::Refused)?;
        let command = self.0.command("condor_submit").args(["-terse", "-"]);
        command.input(description).run_checked().await?;
        Ok(())
    }

    async fn stop(&self, jobs: &[String]) -> Result<(), BackendError> {
        for constraint in self.idle_constraints(jobs) {
            let command = self.0.command("condor_rm");
            let removal = command.args(["-constraint", &constraint]);
            match removal.run_checked().await {
                Ok(_) => {}
                // All of them have started or ended.
                Err(CommandFailure::Failed(said))
                    if said.contains("not found") || said.contains("Couldn't find") => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn condor(extra_lines: &[&str]) -> Condor {
        Condor(SchedulerJobs {
            label: "0123".into(),
            logs: "/home/me/$x".into(),
            command_timeout: Duration::from_secs(1),
            cpus: 2,
            memory_mib: 512,
            submit_options: extra_lines.iter().map(|line| (*line).to_owned()).collect(),
        })
    }

    fn worker(arguments: &[&str]) -> Worker {
        Worker {
            program: "/opt/ping".into(),
            libraries: vec!["/l/a.so".into(), "/l/b c.so".into()],
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    #[test]
    fn a_description_takes_words_as_they_are() {
        let worker = worker(&["it's \"so\"", "$(ENV)", "$ENV(HOME)", "$ $", ""]);
        let text = condor(&["+Group = \"a\""])
            .submit_description(3, &worker)
            .unwrap();
        for line in [
            "executable = /opt/ping",
            r#"arguments = "'it''s ""so""' '$(DOLLAR)(ENV)' '$(DOLLAR)ENV(HOME)' '$(DOLLAR) $(DOLLAR)' ''""#,
            "transfer_input_files = /l/a.so,/l/b c.so",
            "output = /home/me/$(DOLLAR)x/$(Cluster).$(Process).log",
            "request_cpus = 2",
            "request_memory = 512",
            "+Group = \"a\"",
            "+DispatchOverseer = \"0123\"",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
        assert!(
            text.ends_with(&format!("\"{}\"\nqueue 3\n", worker.command_hash())),
            "{text}"
        );
    }

    #[test]
    fn what_a_description_cannot_hold_is_refused() {
        for (worker, extra_lines, words) in [
            (worker(&["$$([1])"]), "", "holds $$"),
            (worker(&["a\nqueue 9"]), "", "control character"),
            (worker(&[]), "a = 1\nqueue 9", "is not one line"),
        ] {
            let error = condor(&[extra_lines])
                .submit_description(1, &worker)
                .unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let mut comma = worker(&[]);
        comma.libraries = vec!["/a,b".into()];
        assert!(
            condor(&[])
                .submit_description(1, &comma)
                .unwrap_err()
                .contains("comma")
        );
    }

    #[test]
    fn a_listing_is_read_whole_or_not() {
        let listing = r#"[
            {"ClusterId":2,"ProcId":10,"JobStatus":1,"DispatchWorkerMark":"m","JobCurrentStartDate":5},
            {"ClusterId":2,"ProcId":9,"JobStatus":2,"DispatchWorkerMark":"m","JobCurrentStartDate":5},
            {"ClusterId":1,"ProcId":0,"JobStatus":5,"HoldReason":"x"},
            {"ClusterId":1,"ProcId":1,"JobStatus":3,"DispatchWorkerMark":"m"},
            {"ClusterId":1,"ProcId":2,"JobStatus":4,"DispatchWorkerMark":"m"}]"#;
        let jobs = parse(listing).unwrap();
        let short: Vec<_> = jobs
            .iter()
            .map(|job| (job.id.as_str(), job.state, job.started_at))
            .collect();
        assert_eq!(
            short,
            [
                ("1.0", State::Idle, None),
                ("1.1", State::Leaving, None),
                ("2.9", State::Busy, Some(5)),
                ("2.10", State::Idle, None),
            ]
        );
        assert_eq!(parse("\n").unwrap(), []);
        parse("[{").unwrap_err();
        parse("Failed to fetch ads").unwrap_err();
    }

    #[test]
    fn no_argument_is_too_long() {
        let jobs: Vec<String> = (0..10_000).map(|n| format!("1234567.{n}")).collect();
        let constraints = condor(&[]).idle_constraints(&jobs);
        assert_eq!(constraints.len(), 20);
        assert!(constraints.iter().all(|text| text.len() < 128 << 10));
        assert!(constraints[19].contains("ClusterId == 1234567 && ProcId == 9999)"));
    }
}

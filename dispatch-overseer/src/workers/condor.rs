//! Worker jobs in HTCondor: one `condor_submit` for all that are started together, found again by attributes.

use std::path::PathBuf;
use std::time::Duration;

use demand::Worker;
use dispatch_core::command::{Command, Failure};
use serde::Deserialize;

use super::{Size, StartError, Unknown, Workers, not_submitted};
use crate::job::{Job, State};

/// Whose job it is.
const LABEL: &str = "DispatchOverseer";
/// Which command it was submitted with.
const MARK: &str = "DispatchWorkerMark";
const COLUMNS: &str =
    "ClusterId,ProcId,JobStatus,JobCurrentStartDate,HoldReason,DispatchWorkerMark";
/// Jobs of one command, at most.
const AT_ONCE: usize = 500;

/// HTCondor, by the commands in PATH.
#[derive(Debug)]
pub struct Condor {
    /// Tells this overseer's jobs from all others.
    pub label: String,
    /// A directory on this machine for what workers say.
    pub logs: PathBuf,
    /// How long a command may take.
    pub patience: Duration,
    /// What a worker takes.
    pub size: Size,
    /// Lines of the submit description that the admin added.
    pub more: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Ad {
    cluster_id: u64,
    proc_id: u64,
    job_status: i64,
    job_current_start_date: Option<u64>,
    hold_reason: Option<String>,
    #[serde(rename = "DispatchWorkerMark")]
    mark: String,
}

impl Condor {
    fn describe(&self, count: u32, worker: &Worker) -> Result<String, String> {
        let logs = literal("the directory", &self.logs.to_string_lossy())?;
        let program = literal("the program", &worker.program)?;
        let libraries: Vec<String> = worker
            .libraries
            .iter()
            .map(|path| match path.contains(',') {
                true => Err(format!(
                    "HTCondor cannot transfer {path:?}: a comma is in its name"
                )),
                false => literal("a library", path),
            })
            .collect::<Result<_, _>>()?;
        let mut arguments = Vec::new();
        for argument in &worker.arguments {
            let word = literal("an argument", argument)?;
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
            format!("request_cpus = {}", self.size.cpus),
            format!("request_memory = {}", self.size.memory_mib),
            "notification = never".to_owned(),
            // However a worker ends, another one is started only if the file says so.
            "on_exit_remove = true".to_owned(),
        ];
        if !libraries.is_empty() {
            lines.push(format!("transfer_input_files = {}", libraries.join(",")));
        }
        for line in &self.more {
            if line.contains(['\n', '\r', '\0']) {
                return Err(format!("the submit line {line:?} is not one line"));
            }
            lines.push(line.clone());
        }
        // Last, so that they hold: by these it is found again.
        lines.push(format!("+{LABEL} = \"{}\"", self.label));
        lines.push(format!("+{MARK} = \"{}\"", worker.mark()));
        lines.push(format!("queue {count}"));
        Ok(lines.join("\n") + "\n")
    }

    /// Constraints for those of `jobs` that have not started: the schedd itself leaves out one that has started since. Each
    /// is one argument, and no longer than such may be (128 KiB).
    fn not_started(&self, jobs: &[String]) -> Vec<String> {
        let constraint = |some: &[String]| {
            let those: Vec<String> = some
                .iter()
                .filter_map(|id| id.split_once('.'))
                .map(|(cluster, process)| format!("ClusterId == {cluster} && ProcId == {process}"))
                .collect();
            format!(
                "{LABEL} == \"{}\" && (JobStatus == 1 || JobStatus == 5) && ({})",
                self.label,
                those.join(" || ")
            )
        };
        jobs.chunks(AT_ONCE).map(constraint).collect()
    }
}

/// A text in a submit description as it stands: a dollar begins a macro there.
fn literal(what: &str, text: &str) -> Result<String, String> {
    // Filled in when the job is matched, and nothing protects two of them in a row from it: of $(DOLLAR)$(DOLLAR) the
    // second is taken for such a name.
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

fn parse(listing: &str) -> Result<Vec<Job>, Unknown> {
    // Nothing at all is how it says that there is no job.
    let mut ads: Vec<Ad> = match listing.trim().is_empty() {
        true => Vec::new(),
        false => serde_json::from_str(listing).map_err(|error| {
            Unknown(format!("condor_q wrote something else than jobs: {error}"))
        })?,
    };
    ads.sort_by_key(|ad| (ad.cluster_id, ad.proc_id));
    Ok(ads.into_iter().filter_map(job).collect())
}

/// None for a job that is over.
fn job(ad: Ad) -> Option<Job> {
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
        mark: ad.mark,
    })
}

impl Workers for Condor {
    async fn list(&self) -> Result<Vec<Job>, Unknown> {
        let constraint = format!("{LABEL} == \"{}\"", self.label);
        let command = Command::new("condor_q").patience(self.patience).args([
            "-json",
            "-attributes",
            COLUMNS,
            "-constraint",
            &constraint,
        ]);
        let answer = command
            .succeed()
            .await
            .map_err(|e| Unknown(e.to_string()))?;
        // Without a job it writes nothing: then only what it complains of tells that from a failure.
        let failed = ["Failed", "Error", "ERROR"]
            .iter()
            .any(|word| answer.complaint.contains(word));
        match answer.output.trim().is_empty() && failed {
            true => Err(Unknown(answer.complaint)),
            false => parse(&answer.output),
        }
    }

    async fn start(&self, count: u32, worker: &Worker) -> Result<(), StartError> {
        let description = self.describe(count, worker).map_err(StartError::Refused)?;
        let command = Command::new("condor_submit")
            .patience(self.patience)
            .args(["-terse", "-"])
            .input(description);
        command.succeed().await.map(drop).map_err(not_submitted)
    }

    async fn stop(&self, jobs: &[String]) -> Result<(), Unknown> {
        for constraint in self.not_started(jobs) {
            let command = Command::new("condor_rm").patience(self.patience);
            match command.args(["-constraint", &constraint]).succeed().await {
                Ok(_) => {}
                // They have all started, or left.
                Err(Failure::Said(said))
                    if said.contains("not found") || said.contains("Couldn't find") => {}
                Err(failure) => return Err(Unknown(failure.to_string())),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condor(more: &[&str]) -> Condor {
        Condor {
            label: "0123".into(),
            logs: "/home/me/$x".into(),
            patience: Duration::from_secs(1),
            size: Size {
                cpus: 2,
                memory_mib: 512,
            },
            more: more.iter().map(|line| (*line).to_owned()).collect(),
        }
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
        let text = condor(&["+Group = \"a\""]).describe(3, &worker).unwrap();
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
            text.ends_with(&format!("\"{}\"\nqueue 3\n", worker.mark())),
            "{text}"
        );
    }

    #[test]
    fn what_a_description_cannot_hold_is_refused() {
        for (worker, more, words) in [
            (worker(&["$$([1])"]), "", "holds $$"),
            (worker(&["a\nqueue 9"]), "", "control character"),
            (worker(&[]), "a = 1\nqueue 9", "is not one line"),
        ] {
            let error = condor(&[more]).describe(1, &worker).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let mut comma = worker(&[]);
        comma.libraries = vec!["/a,b".into()];
        assert!(
            condor(&[])
                .describe(1, &comma)
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
        let constraints = condor(&[]).not_started(&jobs);
        assert_eq!(constraints.len(), 20);
        assert!(constraints.iter().all(|text| text.len() < 128 << 10));
        assert!(constraints[19].contains("ClusterId == 1234567 && ProcId == 9999)"));
    }
}

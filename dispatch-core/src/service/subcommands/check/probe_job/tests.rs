//! Tests of the probe job without a scheduler.

use preflight::Level;

use super::*;

/// A scheduler that refuses every cancel.
struct RefusesCancel {
    state: ProbeState,
    submitted: Result<&'static str, &'static str>,
}

impl RefusesCancel {
    fn of(state: ProbeState) -> Self {
        let submitted = Ok("3");
        Self { state, submitted }
    }
}

impl ProbeScheduler for RefusesCancel {
    const SUBMIT: &'static str = "submit";
    const CANCEL: &'static str = "cancel";
    const REMEDY: &'static str = "none";
    const OUTPUT_DELAY: Duration = Duration::ZERO;

    async fn submit(
        &self,
        _: &ContainerUuid,
        _: &ResourceRequest,
        _: &Path,
        _: Option<&str>,
    ) -> Result<String, Box<dyn Error>> {
        self.submitted.map(str::to_owned).map_err(Into::into)
    }

    async fn state(&self, _: &str) -> Result<ProbeState, String> {
        Ok(self.state.clone())
    }

    async fn cancel(&self, job: &str) -> Result<(), String> {
        Err(format!("job {job} not found"))
    }
}

#[tokio::test]
async fn a_job_that_ended_before_it_could_be_cancelled_is_gone() {
    let ended = RefusesCancel::of(ProbeState::Ended("is gone".to_owned()));
    assert_eq!(cancel(&ended, "3").await, Ok(()));
    let running = RefusesCancel::of(ProbeState::Running("n1".to_owned()));
    assert_eq!(
        cancel(&running, "3").await,
        Err("job 3 not found".to_owned())
    );
}

/// The admin has no container yet whose `--dry-run` could show the command.
#[tokio::test]
async fn a_refused_job_names_what_is_often_missing() {
    let refuses = RefusesCancel {
        submitted: Err("Invalid account or account/partition combination specified"),
        ..RefusesCancel::of(ProbeState::Ended(String::new()))
    };
    let dir = tempfile::tempdir().unwrap();
    let options = ProbeOptions {
        start_timeout: Duration::ZERO,
        node: None,
        partition: None,
        gpus: 0,
    };
    let found = run(&refuses, dir.path(), &options).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].level, Level::Fail);
    assert!(found[0].finding.contains("Invalid account"), "{found:?}");
    let remedy = found[0].remedy.as_deref().unwrap();
    assert!(remedy.contains("account or partition"), "{remedy}");
}

#[test]
fn whatever_a_job_says_is_heard_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("output.log");
    assert_eq!(read_output(&file), "");
    fs::write(&file, b"Gr\xfc\xdfe\n").unwrap();
    assert_eq!(read_output(&file), "Gr\u{fffd}\u{fffd}e\n");
    fs::write(&file, vec![b'x'; 3 << 20]).unwrap();
    assert_eq!(read_output(&file).len() as u64, MAX_OUTPUT_READ);
}

#[test]
fn what_the_node_says_is_one_whole_line() {
    let line = r#"{"host":"n1","uid":7,"version":"1.0","ok":false,"findings":[{"level":"ok","what":"kernel","finding":"6.1"},{"level":"fail","what":"cache","finding":"is full","mend":"empty it"}]}"#;
    let node = parse_report(&format!("a note\n{line}\n{{}}\nan ep")).unwrap();
    assert_eq!((node.uid, node.version.as_str()), (7, "1.0"));
    let findings: Vec<Finding> = findings(node, 0).collect();
    assert_eq!(findings[0].what, "n1, kernel");
    let fail = &findings[1];
    assert_eq!(
        (fail.level, fail.remedy.as_deref()),
        (Level::Fail, Some("empty it"))
    );
    for said in ["", line, "crunch-run: no such flag\n", "{}\n"] {
        assert!(parse_report(said).is_none(), "{said}");
    }
}

#[test]
fn a_job_has_as_many_gpus_as_it_asked_for() {
    for (granted, asked, level) in [
        (r#"["0","GPU-1"]"#, 2, Level::Ok),
        (r#"["0"]"#, 2, Level::Fail),
        ("[]", 1, Level::Fail),
    ] {
        let line = format!(
            r#"{{"host":"n1","uid":7,"version":"1.0","granted_gpus":{granted},"ok":true,"findings":[]}}"#
        );
        let node = parse_report(&format!("{line}\n")).unwrap();
        let findings: Vec<Finding> = findings(node, asked).collect();
        assert_eq!(findings[0].level, level, "{findings:?}");
        assert_eq!(findings[0].what, "n1, granted GPUs");
    }
}

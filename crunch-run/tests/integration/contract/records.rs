//! What remains of a container: log files, statistics and result.

use arvados_client::records::ContainerState;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::contract::lab::Lab;
use crate::run_lab::{Job, file, lines, signal};

pub async fn logs_are_present_and_stamped(lab: &Lab) {
    let ended = lab
        .sh_when_counted("echo out; echo err >&2", json!({}))
        .await;
    for name in ["crunch-run.txt", "stdout.txt", "stderr.txt"] {
        assert!(!lines(file(&ended.log, name)).is_empty(), "{name}");
    }
    let statistics = lines(file(&ended.log, "crunchstat.txt"));
    for words in ["mem ", "cpu ", "statfs "] {
        assert!(
            statistics.iter().any(|line| line.starts_with(words)),
            "no {words:?} in {statistics:?}"
        );
    }
    assert!(file(&ended.log, "node-info.txt").starts_with("Host Information\n"));
    let record: Value = serde_json::from_str(file(&ended.log, "container.json")).unwrap();
    assert_eq!(record["uuid"], ended.record.uuid.as_str());
}

pub async fn the_result_is_written_for_programs(lab: &Lab) {
    let ended = lab.sh_when_counted("exit 3", json!({})).await;
    let result: Value = serde_json::from_str(file(&ended.log, "result.json")).unwrap();
    assert_eq!(result["verdict"], "exited");
    assert_eq!(result["state"], "Complete");
    assert_eq!(result["exit_code"], 3);
    // The engine's own processes need more.
    let peak = result["peak_memory_bytes"].as_u64().unwrap();
    assert!((1..=16 << 20).contains(&peak), "{result}");
}

pub async fn the_attempt_tidies_up(lab: &Lab) {
    let ended = lab.run(&["true"], json!({})).await;
    assert_eq!(left(&ended.job), ["lock"]);
}

fn left(job: &Job) -> Vec<String> {
    std::fs::read_dir(&job.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The files may belong to another user of the node.
pub async fn files_of_the_container_s_user_are_tidied_up(lab: &Lab) {
    let script = "umask 022; mkdir -p /out/a/b && echo x >/out/a/b/c && chmod 600 /out/a/b/c";
    let ended = lab.sh(script).await;
    assert_eq!(ended.code(), 0, "{}", ended.program_output);
    assert_eq!(ended.output, [("a/b/c".to_owned(), "x\n".to_owned())]);
    assert_eq!(left(&ended.job), ["lock"], "{}", ended.program_output);

    // The cancelled container's output is not saved, and nothing is left.
    let script = format!("{script}; echo ready; sleep 1000");
    let (job, child) = lab
        .start(&["sh", "-c", &script], json!({}), &["--stop-grace=1s"])
        .await;
    lab.world.until_logged(&job, "ready").await;
    signal(&child, Signal::TERM);
    let ended = lab.end(job, child).await;
    assert_eq!(ended.record.state, ContainerState::Cancelled);
    assert_eq!(left(&ended.job), ["lock"], "{}", ended.program_output);
}

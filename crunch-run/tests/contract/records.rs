//! What stays of a container: its log files, statistics and result.

use serde_json::{Value, json};

use crate::lab::Lab;
use crate::run_lab::{file, lines};

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
    assert!(
        result["peak_memory_bytes"].as_u64().unwrap() > 0,
        "{result}"
    );
}

pub async fn the_attempt_tidies_up(lab: &Lab) {
    let ended = lab.run(&["true"], json!({})).await;
    let left: Vec<String> = std::fs::read_dir(&ended.job.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["lock"]);
}

//! Containers that run to their own end: output, logs, mounts and what the record says.

mod run_lab;

use arvados_client::records::ContainerState;
use run_lab::{World, can_run, file, lines};
use serde_json::{Value, json};

#[tokio::test]
async fn a_command_runs_to_complete_with_output_and_log() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (job, finished, record) = world
        .run_command(
            &[
                "sh",
                "-c",
                "echo hello; echo oops >&2; echo data >/out/file",
            ],
            json!({}),
        )
        .await;
    assert_eq!(finished.code, 0, "{}", finished.said);
    assert_eq!(record.state, ContainerState::Complete, "{}", finished.said);
    assert_eq!(record.exit_code, Some(0));
    assert_eq!(record.runtime_status.error, None);
    assert_eq!(record.runtime_status.activity, None);
    assert_eq!(
        world.output(&job).await,
        [("file".to_owned(), "data\n".to_owned())]
    );

    let log = world.log(&job).await;
    assert_eq!(lines(file(&log, "stdout.txt")), ["hello"]);
    assert_eq!(lines(file(&log, "stderr.txt")), ["oops"]);
    let story = lines(file(&log, "crunch-run.txt"));
    assert_eq!(story.last(), Some(&"Complete"), "{story:?}");
    assert!(story.contains(&"Container exited with status code 0"));
    assert!(lines(file(&log, "crunchstat.txt")).len() >= 4);
    assert!(file(&log, "node-info.txt").starts_with("Host Information\nLinux "));
    let result: Value = serde_json::from_str(file(&log, "result.json")).unwrap();
    assert_eq!(result["verdict"], "Complete");
    assert!(
        result["peak_memory_bytes"].as_u64().unwrap() > 0,
        "{result}"
    );
    assert!(
        result["phases"]["command"].as_f64().unwrap() > 0.0,
        "{result}"
    );
    let recorded: Value = serde_json::from_str(file(&log, "container.json")).unwrap();
    assert_eq!(recorded["state"], "Locked");
    assert_eq!(recorded["uuid"], job.uuid.as_str());

    let mut left: Vec<String> = std::fs::read_dir(&job.dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, Vec::<String>::new());
}

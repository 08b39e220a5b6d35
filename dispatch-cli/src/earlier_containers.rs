//! How the earlier containers of a job ended. A server lets users read only the newest one, but the
//! log of the request has a directory for each.
//!
//! Input: the log collection of the request. Output: one line for each earlier container, the
//! oldest first.

use arvados_client::Client;
use serde_json::Value;

use crate::collection;
use crate::error::CliError;
use crate::job::Job;
use crate::saved_log::{self, OF_CONTAINER};

/// Maximum number of bytes that are read of a file.
const MAX_FILE: usize = 4 << 20;
/// Maximum number of containers that are told of.
const MAX_CONTAINERS: usize = 20;

/// One line for each earlier container of the job. Empty if there was none, or the log cannot be
/// read: the lines are only a help.
pub async fn lines(client: &Client, job: &Job) -> Vec<String> {
    let Some(log) = &job.request.log_uuid else {
        return Vec::new();
    };
    if job.request.container_count <= 1 {
        return Vec::new();
    }
    read(client, job, log.as_str()).await.unwrap_or_default()
}

async fn read(client: &Client, job: &Job, log: &str) -> Result<Vec<String>, CliError> {
    let keep = client.keep(client.keep_options().await?).await?;
    let tree = collection::open(client, log).await?.tree;
    let newest = job.request.container_uuid.as_ref();
    let newest = newest.map(|uuid| uuid.as_str());
    let mut all = Vec::new();
    let entries = tree.list("").unwrap_or_default();
    for dir in entries.into_keys().take(MAX_CONTAINERS) {
        let container = dir.strip_prefix(OF_CONTAINER);
        let Some(container) = container.filter(|uuid| Some(*uuid) != newest) else {
            continue;
        };
        let text = async |file: &str| {
            let path = format!("{dir}/{file}");
            let bytes = saved_log::read_file(&keep, &tree, &path, MAX_FILE).await;
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        all.push(account(
            container,
            &text("crunch-run.txt").await,
            &text("dispatch.txt").await,
            &text("result.json").await,
        ));
    }
    all.sort();
    Ok(all.into_iter().map(|(_, line)| line).collect())
}

/// What the files of one container say: the time of its first log line, as text, which sorts, and
/// a line. The second line of the dispatcher's file has its account. The dispatcher knows more than
/// crunch-run, so it comes first.
fn account(container: &str, crunch_run: &str, dispatcher: &str, result: &str) -> (String, String) {
    let account = dispatcher.lines().nth(1);
    let account = account.and_then(|line| Some(line.split_once(' ')?.1));
    let result: Value = serde_json::from_str(result).unwrap_or_default();
    let reason = account.or(result["error"]["sentence"].as_str());
    let reason = reason.unwrap_or("its log does not say why it ended");
    let mut first_words = crunch_run
        .split_whitespace()
        .chain(dispatcher.split_whitespace());
    let begun = first_words.next().unwrap_or_default().to_owned();
    (begun, format!("{container}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_earlier_container_has_one_line_and_they_are_sorted_by_time() {
        let result = r#"{"error": {"sentence": "it used too much memory", "detail": ""}}"#;
        let of_dispatcher = "2026-01-02T00:00:00.0Z The executor is gone.\n2026-01-02T00:00:00.0Z slurm: job 7 was preempted\n";
        let mut all = [
            account("c", "", "", "{"),
            account("a", "2026-01-03T00:00:00.0Z begins", "", result),
            account("b", "2026-01-01T00:00:00.0Z begins", of_dispatcher, result),
        ];
        all.sort();
        assert_eq!(
            all.map(|(_, line)| line),
            [
                "c: its log does not say why it ended",
                "b: slurm: job 7 was preempted",
                "a: it used too much memory",
            ]
        );
    }
}

//! Writes the log of a container whose executor crashed.
//!
//! Input: the [`JobExit`] from the scheduler, and the log that the executor saved last. Output: a
//! log collection with an additional file of the dispatcher. No other program saves this log.

use std::io::SeekFrom;
use std::path::Path;

use arvados_client::filter::Query;
use arvados_client::keep::{CollectionWriter, KeepClient, KeepError};
use arvados_client::manifest::{Manifest, ManifestError};
use arvados_client::records::ContainerRequest;
use arvados_client::{Client, ContainerUuid, Error};
use jiff::Timestamp;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::scheduler::JobExit;

/// Name of the dispatcher's file in the log collection.
const FILE_NAME: &str = "dispatch.txt";

/// Maximum number of files of a log that are saved from a directory.
const MAX_FILES: usize = 100;
/// Maximum number of bytes at the end of such a file that are saved.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Log files that are saved beside that of the dispatcher.
#[derive(Debug, Clone, Copy)]
pub enum OtherLogs<'a> {
    None,
    /// Those that the executor saved last.
    SavedLast,
    /// Those that the executor was writing. If there are none, those that it saved last.
    InDirectory(&'a Path),
}

/// Why the log could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum CrashLogError {
    /// A call to the API server failed.
    #[error(transparent)]
    Api(#[from] Error),
    /// Storing the text in Keep failed.
    #[error("cannot store the log: {0}")]
    Keep(#[from] KeepError),
    /// The earlier log could not be parsed.
    #[error("cannot parse the log that was saved last: {0}")]
    Manifest(#[from] ManifestError),
    /// The answer of the API server lacks the portable data hash.
    #[error("the API server gave the log collection no portable data hash")]
    NoHash,
}

/// The content of the file.
pub fn render(
    container: &ContainerUuid,
    scheduler: &str,
    exit: &JobExit,
    now: Timestamp,
) -> String {
    let mut text = format!(
        "{now:.9} The executor of {container} is gone and recorded no final state. The dispatcher wrote this log.\n\
         {now:.9} {scheduler}: {}\n",
        exit.reason_or_default()
    );
    match exit.detail.trim_end() {
        "" => text.push_str(&format!("{now:.9} The job wrote no output.\n")),
        detail => {
            text.push_str(&format!("{now:.9} End of the output of the job:\n"));
            for line in detail.lines() {
                text.push_str(&format!("{now:.9} | {line}\n"));
            }
        }
    }
    text
}

/// Saves `text` in a new collection, beside the others, and returns its portable data hash.
pub(crate) async fn save(
    client: &Client,
    container: &ContainerUuid,
    others: OtherLogs<'_>,
    text: &str,
) -> Result<String, CrashLogError> {
    let keep = client.keep(client.keep_options().await?).await?;
    let mut writer = CollectionWriter::new(keep);
    let from_directory = match others {
        OtherLogs::InDirectory(dir) => put_files(&mut writer, dir).await?,
        OtherLogs::None | OtherLogs::SavedLast => 0,
    };
    writer.start_file(FILE_NAME)?;
    writer.write(text.as_bytes()).await?;
    writer.finish_file();
    let ours = writer.finish().await?;
    let earlier = match others {
        OtherLogs::SavedLast => earlier(client, container).await?,
        OtherLogs::InDirectory(_) if from_directory == 0 => earlier(client, container).await?,
        OtherLogs::None | OtherLogs::InDirectory(_) => None,
    };
    let manifest = match earlier {
        None => ours,
        Some(earlier) => Manifest::merged([&earlier, &ours])?,
    };
    // The collection is created in the trash. The server copies it from there to the container
    // requests.
    let made = client
        .create_collection(json!({
            "name": format!("logs for {container}"),
            "manifest_text": manifest.to_string(),
            "is_trashed": true,
        }))
        .await?;
    let hash = made.portable_data_hash.ok_or(CrashLogError::NoHash)?;
    Ok(hash.to_string())
}

/// Writes the files in the directory of a log; returns their number. What is no file is passed
/// over.
async fn put_files(
    writer: &mut CollectionWriter<KeepClient>,
    dir: &Path,
) -> Result<usize, CrashLogError> {
    let mut count = 0;
    let Ok(mut entries) = tokio::fs::read_dir(dir).await else {
        return Ok(count);
    };
    while let Ok(Some(entry)) = entries.next_entry().await {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_file = entry.file_type().await.is_ok_and(|kind| kind.is_file());
        if !is_file || count == MAX_FILES {
            continue;
        }
        let Ok(mut file) = tokio::fs::File::open(entry.path()).await else {
            continue;
        };
        let size = file.metadata().await.map_or(0, |facts| facts.len());
        let start = SeekFrom::Start(size.saturating_sub(MAX_FILE_BYTES));
        if file.seek(start).await.is_ok() {
            writer.put_reader(&name, file.take(MAX_FILE_BYTES)).await?;
            count += 1;
        }
    }
    Ok(count)
}

/// The last saved log, read from a container request. The container's own collection is in the
/// trash, where its blocks have no signatures for readers.
async fn earlier(
    client: &Client,
    container: &ContainerUuid,
) -> Result<Option<Manifest>, CrashLogError> {
    let query = Query::new()
        .filter("container_uuid", "=", container)
        .select(&["uuid", "log_uuid"])
        .include_trash()
        .limit(1);
    let requests = client
        .page::<ContainerRequest>("container_requests", &query)
        .await?;
    let Some(log) = requests.items.into_iter().find_map(|one| one.log_uuid) else {
        return Ok(None);
    };
    let query = Query::new()
        .filter("uuid", "=", &log)
        .select(&["uuid", "manifest_text"])
        .include_trash()
        .limit(1);
    let shown = client
        .page::<serde_json::Value>("collections", &query)
        .await?;
    let text = shown
        .items
        .first()
        .and_then(|log| log["manifest_text"].as_str());
    let own = container_streams(text.unwrap_or_default(), container);
    Ok(Some(Manifest::parse(&own)?))
}

/// Extracts the streams of one container from the log of a request. That log has one directory per
/// container.
fn container_streams(manifest: &str, container: &ContainerUuid) -> String {
    let directory = format!("./log\\040for\\040container\\040{container}");
    let streams = manifest.lines().filter_map(|line| {
        let rest = line.strip_prefix(&directory)?;
        rest.starts_with([' ', '/']).then(|| format!(".{rest}\n"))
    });
    streams.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_s_log_has_those_of_other_containers_beside() {
        let container = ContainerUuid::generate("zzzzz");
        let block = "acbd18db4cc2f85cedef654fccc4a4d8+3";
        let name = format!("./log\\040for\\040container\\040{container}");
        let manifest = format!(
            ". {block} 0:3:stdout.txt\n{name} {block} 0:3:stdout.txt\n{name}/deep {block} 0:3:x\n{name}0 {block} 0:3:y\n"
        );
        assert_eq!(
            container_streams(&manifest, &container),
            format!(". {block} 0:3:stdout.txt\n./deep {block} 0:3:x\n")
        );
    }

    #[test]
    fn every_line_has_its_time_and_the_reason_is_included() {
        let now: Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
        let container = ContainerUuid::generate("zzzzz");
        let exit = JobExit {
            reason: "Slurm job 7 was lost with its node".into(),
            detail: "one\ntwo\n".into(),
            ..JobExit::default()
        };
        let text = render(&container, "slurm", &exit, now);
        assert!(
            text.lines()
                .all(|line| line.starts_with("2026-01-02T03:04:05.600000000Z ")),
            "{text}"
        );
        assert!(
            text.contains(" slurm: Slurm job 7 was lost with its node\n"),
            "{text}"
        );
        assert!(text.ends_with(" | two\n"), "{text}");
        let without_output = render(&container, "slurm", &JobExit::default(), now);
        assert!(
            without_output.contains("does not report the reason")
                && without_output.contains("wrote no output"),
            "{without_output}"
        );
    }
}

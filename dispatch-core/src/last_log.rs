//! The log of a container whose executor is gone: what it last saved, and what the dispatcher has to say. Nobody else
//! will save one.

use std::time::Duration;

use arvados_client::keep::{CollectionWriter, KeepError};
use arvados_client::manifest::{Manifest, ManifestError};
use arvados_client::{Client, ContainerUuid, Error};
use jiff::Timestamp;
use serde_json::json;

use crate::scheduler::Ending;

/// The dispatcher's file beside those of crunch-run.
const FILE: &str = "dispatch.txt";
/// The collection itself is only for the container's record: whoever asked for the container gets a copy.
const KEPT: Duration = Duration::from_secs(14 * 86400);

/// Why the log could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum LastLogError {
    /// A call to the server.
    #[error(transparent)]
    Api(#[from] Error),
    /// Storing the text.
    #[error("the log cannot be stored: {0}")]
    Keep(#[from] KeepError),
    /// The log that is there.
    #[error("the log saved before cannot be read: {0}")]
    Manifest(#[from] ManifestError),
    /// The answer.
    #[error("the API server gave the log collection no portable data hash")]
    NoHash,
}

/// What the file says.
pub fn text(container: &ContainerUuid, scheduler: &str, ending: &Ending, now: Timestamp) -> String {
    let mut text = format!(
        "{now:.9} The executor of {container} is gone and left no final state; this is written by its dispatcher.\n\
         {now:.9} {scheduler}: {}\n",
        ending.sentence()
    );
    match ending.detail.trim_end() {
        "" => text.push_str(&format!("{now:.9} Its job wrote nothing.\n")),
        detail => {
            text.push_str(&format!("{now:.9} The last its job wrote:\n"));
            for line in detail.lines() {
                text.push_str(&format!("{now:.9} | {line}\n"));
            }
        }
    }
    text
}

/// Saves `text` beside the files of the log `earlier` and returns the new collection's portable data hash.
pub(crate) async fn save(
    client: &Client,
    container: &ContainerUuid,
    earlier: Option<String>,
    text: &str,
) -> Result<String, LastLogError> {
    let keep = client.keep(client.keep_options().await?).await?;
    let mut writer = CollectionWriter::new(keep);
    writer.start_file(FILE)?;
    writer.write(text.as_bytes()).await?;
    writer.finish_file();
    let ours = writer.finish().await?;
    let manifest = match earlier {
        None => ours,
        Some(earlier) => {
            let saved = client.collection(&earlier).await?;
            let saved = Manifest::parse(&saved.manifest_text)?;
            Manifest::merged([&saved, &ours])?
        }
    };
    let until = (Timestamp::now() + KEPT).to_string();
    let made = client
        .create_collection(json!({
            "name": format!("logs for {container}"),
            "manifest_text": manifest.to_string(),
            "trash_at": until, "delete_at": until,
        }))
        .await?;
    let hash = made.portable_data_hash.ok_or(LastLogError::NoHash)?;
    Ok(hash.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_time_and_the_reason_is_told() {
        let now: Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
        let container = ContainerUuid::generate("zzzzz");
        let ending = Ending {
            reason: "Slurm job 7 was lost with its node".into(),
            detail: "one\ntwo\n".into(),
            ..Ending::default()
        };
        let told = text(&container, "slurm", &ending, now);
        assert!(
            told.lines()
                .all(|line| line.starts_with("2026-01-02T03:04:05.600000000Z ")),
            "{told}"
        );
        assert!(
            told.contains(" slurm: Slurm job 7 was lost with its node\n"),
            "{told}"
        );
        assert!(told.ends_with(" | two\n"), "{told}");
        let silent = text(&container, "slurm", &Ending::default(), now);
        assert!(
            silent.contains("the scheduler does not tell why") && silent.contains("wrote nothing"),
            "{silent}"
        );
    }
}

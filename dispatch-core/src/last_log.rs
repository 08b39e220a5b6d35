//! The log of a container whose executor is gone: what it last saved, and what the dispatcher has to say. Nobody else
//! will save one.

use arvados_client::filter::Query;
use arvados_client::keep::{CollectionWriter, KeepError};
use arvados_client::manifest::{Manifest, ManifestError};
use arvados_client::records::ContainerRequest;
use arvados_client::{Client, ContainerUuid, Error};
use jiff::Timestamp;
use serde_json::json;

use crate::scheduler::Ending;

/// The dispatcher's file beside those of crunch-run.
const FILE: &str = "dispatch.txt";

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

/// Saves `text` in a new collection and returns its portable data hash. With `beside_earlier` the collection has the
/// files of the log that was saved last, too.
pub(crate) async fn save(
    client: &Client,
    container: &ContainerUuid,
    beside_earlier: bool,
    text: &str,
) -> Result<String, LastLogError> {
    let keep = client.keep(client.keep_options().await?).await?;
    let mut writer = CollectionWriter::new(keep);
    writer.start_file(FILE)?;
    writer.write(text.as_bytes()).await?;
    writer.finish_file();
    let ours = writer.finish().await?;
    let earlier = match beside_earlier {
        true => earlier(client, container).await?,
        false => None,
    };
    let manifest = match earlier {
        None => ours,
        Some(earlier) => Manifest::merged([&earlier, &ours])?,
    };
    // Made in the trash: the server copies it from there to whoever asked for the container.
    let made = client
        .create_collection(json!({
            "name": format!("logs for {container}"),
            "manifest_text": manifest.to_string(),
            "is_trashed": true,
        }))
        .await?;
    let hash = made.portable_data_hash.ok_or(LastLogError::NoHash)?;
    Ok(hash.to_string())
}

/// The log that was saved last, as a request for the container shows it: the container's own collection is in the
/// trash, where its blocks are not signed for readers.
async fn earlier(
    client: &Client,
    container: &ContainerUuid,
) -> Result<Option<Manifest>, LastLogError> {
    let query = Query::new()
        .filter("container_uuid", "=", container)
        .select(&["uuid", "log_uuid"])
        .limit(1);
    let requests = client
        .page::<ContainerRequest>("container_requests", &query)
        .await?;
    let Some(log) = requests.items.into_iter().find_map(|one| one.log_uuid) else {
        return Ok(None);
    };
    let shown = client.collection(log.as_str()).await?;
    let own = of_container(&shown.manifest_text, container);
    Ok(Some(Manifest::parse(&own)?))
}

/// The streams of one container's log among those of a request's, in which each container has a directory of its own.
fn of_container(manifest: &str, container: &ContainerUuid) -> String {
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
            of_container(&manifest, &container),
            format!(". {block} 0:3:stdout.txt\n./deep {block} 0:3:x\n")
        );
    }

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

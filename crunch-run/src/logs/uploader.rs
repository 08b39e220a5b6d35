//! Uploads the log files. Each save sends only new data to Keep and creates a new collection in the
//! trash.
//!
//! No collection is ever changed, so the attempt token needs no permission for that.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use arvados_client::error::StatusCode;
use arvados_client::keep::{BlockStore, CollectionWriter, KeepClient, KeepError};
use arvados_client::records::Collection;
use arvados_client::{Client, ContainerUuid, Pdh};
use host_state::file::if_present;
use tokio::sync::Mutex;

use super::{FILES, LogDir};
use crate::own_record;

const READ_SIZE: u64 = 1 << 20;
/// Timeout of storing a few bytes.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("the log file {name} cannot be read: {source}")]
    Read {
        name: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the log cannot be stored: {0}")]
    Keep(#[from] KeepError),
    #[error("the log collection cannot be saved: {0}")]
    Api(#[from] arvados_client::Error),
    #[error("the API server gave the log collection no portable data hash")]
    NoHash,
}

#[derive(Debug)]
pub struct LogUploader {
    client: Client,
    keep: KeepClient,
    uuid: ContainerUuid,
    dir: LogDir,
    /// Locked during a save, so that saves do not overlap.
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// `None` at first and after a failed save. Then everything is sent again.
    writer: Option<CollectionWriter<KeepClient>>,
    /// Number of bytes of each file that the writer has.
    sent: BTreeMap<&'static str, u64>,
    saved: Option<(String, Pdh)>,
}

impl LogUploader {
    pub fn new(client: Client, keep: KeepClient, uuid: ContainerUuid, dir: LogDir) -> Self {
        Self {
            client,
            keep,
            uuid,
            dir,
            progress: Mutex::default(),
        }
    }

    pub fn dir(&self) -> &LogDir {
        &self.dir
    }

    /// Saves the current files. A refused call is retried for a minute.
    pub async fn save(&self) -> Result<Pdh, SaveError> {
        self.save_as(&self.client).await
    }

    /// Like [`save`](Self::save), but returns a refusal at once.
    pub async fn save_once(&self) -> Result<Pdh, SaveError> {
        let client = self.client.with_refusal_window(Duration::ZERO);
        self.save_as(&client).await
    }

    /// Whether the file storage takes a few bytes, or refuses only this token: a log may just be
    /// too large for its time. Nothing refers to the bytes, so the storage removes them later.
    pub async fn can_store(&self) -> bool {
        let data = format!("trial {}\n", fastrand::u128(..));
        let stored = BlockStore::put(&self.keep, data.into());
        let stored = tokio::time::timeout(TRIAL_TIMEOUT, stored).await;
        match stored {
            Ok(Err(error)) => error.is_token_refused(),
            stored => stored.is_ok(),
        }
    }

    async fn save_as(&self, client: &Client) -> Result<Pdh, SaveError> {
        let mut progress = self.progress.lock().await;
        // Taken out, so that a failed or cancelled upload leaves no partial writer.
        let mut writer = match progress.writer.take() {
            Some(writer) => writer,
            None => {
                progress.sent.clear();
                CollectionWriter::new(self.keep.clone())
            }
        };
        for name in FILES {
            let sent = progress.sent.entry(name).or_default();
            *sent = add_new(&mut writer, self.dir.file(name), name, *sent).await?;
        }
        let manifest = writer.snapshot().await?.to_string();
        progress.writer = Some(writer);
        if let Some((saved, pdh)) = &progress.saved
            && *saved == manifest
        {
            return Ok(pdh.clone());
        }
        let made = client.send(own_record::new_log(&self.uuid, &manifest));
        let made: Result<Collection, _> = made.await;
        if let Err(error) = &made
            && error.status().is_some_and(|status| {
                status.is_client_error() && status != StatusCode::UNAUTHORIZED
            })
        {
            // Block signatures may have expired, so the next save sends everything again.
            *progress = Progress::default();
        }
        let pdh = made?.portable_data_hash.ok_or(SaveError::NoHash)?;
        progress.saved = Some((manifest, pdh.clone()));
        Ok(pdh)
    }
}

/// Adds the bytes after the first `sent` ones. Returns the new total.
async fn add_new(
    writer: &mut CollectionWriter<KeepClient>,
    path: impl AsRef<Path>,
    name: &'static str,
    sent: u64,
) -> Result<u64, SaveError> {
    let failed = |source| SaveError::Read { name, source };
    let Some(mut file) = if_present(File::open(path)).map_err(failed)? else {
        return Ok(sent);
    };
    // Only up to the current size; a busy log would never end.
    let end = file.metadata().map_err(failed)?.len();
    if end < sent || (end == sent && sent > 0) {
        return Ok(sent);
    }
    file.seek(SeekFrom::Start(sent)).map_err(failed)?;
    writer.start_file(name)?;
    let mut at = sent;
    while at < end {
        let size = READ_SIZE.min(end - at);
        let part = tokio::task::spawn_blocking(move || {
            let mut data = Vec::with_capacity(size as usize);
            (&file).take(size).read_to_end(&mut data)?;
            Ok((file, data))
        });
        let (back, data): (File, Vec<u8>) = part
            .await
            .map_err(io::Error::other)
            .flatten()
            .map_err(failed)?;
        file = back;
        if data.is_empty() {
            break;
        }
        writer.write(&data).await?;
        at += data.len() as u64;
    }
    writer.finish_file();
    Ok(at)
}

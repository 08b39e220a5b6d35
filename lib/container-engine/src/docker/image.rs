//! Loads the image into the daemon's store unless it has it; one loader at a time on this node.

use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::ImportImageOptionsBuilder;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::{Flavour, errors};
use crate::EngineError;
use image_archive::{Archive, ArchiveError, ImageConfig};
use node_cache::image::{Image, ImageError, ImageSource, lock};

/// Timeout of a load: the daemon answers after it has unpacked everything.
const LOAD_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of chunks of the archive that wait for the daemon.
const MAX_QUEUED_CHUNKS: usize = 8;

pub async fn prepare(
    client: &Docker,
    flavour: Flavour,
    lock_dir: &Path,
    source: ImageSource,
) -> Result<Image, EngineError> {
    let known = source.id.as_deref().map(full_id);
    if let Some(id) = &known
        && let Some(image) = inspect(client, flavour, id).await?
    {
        return Ok(image);
    }
    let lock_file = lock_dir.join(format!("{}-load.lock", flavour.name()));
    let _loading = run_blocking(move || {
        lock::exclusive(&lock_file).map_err(|source| ImageError::Cache {
            path: lock_file,
            source,
        })
    })
    .await??;
    // Another process may have loaded the image while this one waited for the lock.
    if let Some(id) = &known
        && let Some(image) = inspect(client, flavour, id).await?
    {
        return Ok(image);
    }
    let label = source.label.clone();
    let (archive, id) = run_blocking(move || open(source)).await??;
    if let Some(image) = inspect(client, flavour, &id).await? {
        return Ok(image);
    }
    load(client, flavour, archive, &label).await?;
    let loaded = inspect(client, flavour, &id).await?;
    Ok(loaded.ok_or_else(|| ArchiveError::NotInArchive {
        label,
        wanted: id,
        present: "something else, as the daemon that loaded it says".to_owned(),
    })?)
}

fn full_id(id: &str) -> String {
    if id.starts_with("sha256:") {
        id.to_owned()
    } else {
        format!("sha256:{id}")
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        EngineError::io("loading the image was interrupted", io::Error::other(error))
    })
}

/// The archive, rewound, and the id of its image.
fn open(source: ImageSource) -> Result<(Box<dyn Archive>, String), ArchiveError> {
    let wanted = source.id.clone();
    let (mut archive, label) = source.open()?;
    let (id, _) = image_archive::identify(&mut archive, &label, wanted.as_deref())?;
    let rewound = archive.rewind();
    rewound.map_err(|error| ArchiveError::read(&label, error))?;
    Ok((archive, id))
}

async fn inspect(
    client: &Docker,
    flavour: Flavour,
    id: &str,
) -> Result<Option<Image>, EngineError> {
    let found = match client.inspect_image(id).await {
        Ok(found) => found,
        Err(error) if errors::is_gone(&error) => return Ok(None),
        Err(error) => {
            let what = format!("{} does not say whether it has image {id}", flavour.name());
            return Err(EngineError::io(what, io::Error::other(error)));
        }
    };
    let config = found.config.unwrap_or_default();
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let config = ImageConfig {
        env: config.env.unwrap_or_default(),
        entrypoint: config.entrypoint.unwrap_or_default(),
        cmd: config.cmd.unwrap_or_default(),
        working_dir: given(config.working_dir),
        user: given(config.user),
    };
    Ok(Some(Image::in_engine_store(id.to_owned(), config)))
}

async fn load(
    client: &Docker,
    flavour: Flavour,
    archive: Box<dyn Archive>,
    label: &str,
) -> Result<(), EngineError> {
    let (chunks, queue) = mpsc::channel(MAX_QUEUED_CHUNKS);
    let reader = tokio::task::spawn_blocking(move || read(archive, &chunks));
    let body = stream::unfold(queue, async |mut queue| {
        let chunk: Result<Bytes, io::Error> = queue.recv().await?;
        Some((chunk, queue))
    });
    let loader = client.clone().with_timeout(LOAD_TIMEOUT);
    let options = ImportImageOptionsBuilder::new().quiet(true).build();
    let mut progress = Box::pin(loader.import_image_stream(options, body, None));
    let mut outcome = Ok(());
    // The daemon reports a failure within the response, whatever its status.
    while let Some(line) = progress.next().await {
        if let Err(error) = line {
            outcome = Err(error);
            break;
        }
    }
    drop(progress);
    // A read error of the archive is the true reason: the daemon sees only its end.
    if let Ok(Err(source)) = reader.await {
        return Err(ArchiveError::read(label, source).into());
    }
    outcome.map_err(|error| load_error(flavour, label, error))
}

/// Sends the archive until it ends or the receiver is gone.
fn read(
    mut archive: Box<dyn Archive>,
    chunks: &mpsc::Sender<Result<Bytes, io::Error>>,
) -> io::Result<()> {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let count = match archive.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let end_error = io::Error::new(error.kind(), "the archive cannot be read further");
                let _ = chunks.blocking_send(Err(end_error));
                return Err(error);
            }
        };
        chunk.truncate(count);
        if count == 0 || chunks.blocking_send(Ok(chunk.into())).is_err() {
            return Ok(());
        }
    }
}

fn load_error(flavour: Flavour, label: &str, error: Error) -> EngineError {
    match errors::daemon_message(&error) {
        Some(reason) if !errors::is_node_fault(reason) => {
            ArchiveError::damaged(label, format!("{} says: {reason}", flavour.name())).into()
        }
        _ => {
            let what = format!("{} cannot load image archive {label}", flavour.name());
            EngineError::io(what, io::Error::other(error))
        }
    }
}

//! Loads the image into the daemon's store unless it has it; one loader at a time on this node.

use std::io::{self, BufWriter, Write};
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
use image_archive::{ArchiveError, ImageConfig};
use node_cache::image::{Image, ImageError, ImageSource, lock};

/// Timeout of a load: the daemon answers after it has unpacked everything.
const LOAD_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Repository of all images that are loaded.
const REPOSITORY: &str = "localhost/crunch-run";
const DAEMON_IS_GONE: io::ErrorKind = io::ErrorKind::BrokenPipe;
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of chunks of the archive that wait for the daemon.
const MAX_QUEUED_CHUNKS: usize = 8;

/// The image of an archive has a name of ours, made of the name of the archive's content. No
/// archive gives a name to anything in the store: see `image_archive::export`. Other images of the
/// store, such as those of the node's admin, are given to nobody.
pub async fn prepare(
    client: &Docker,
    flavour: Flavour,
    lock_dir: &Path,
    source: ImageSource,
) -> Result<Image, EngineError> {
    let name = format!("{REPOSITORY}:{}", source.key());
    if let Some(image) = inspect(client, flavour, &name).await? {
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
    if let Some(image) = inspect(client, flavour, &name).await? {
        return Ok(image);
    }
    load(client, flavour, source, &name).await?;
    inspect(client, flavour, &name).await?.ok_or_else(|| {
        let what = format!(
            "{} does not have image {name}, which it loaded",
            flavour.name()
        );
        EngineError::io(what, io::ErrorKind::NotFound)
    })
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        EngineError::io("loading the image was interrupted", io::Error::other(error))
    })
}

async fn inspect(
    client: &Docker,
    flavour: Flavour,
    name: &str,
) -> Result<Option<Image>, EngineError> {
    let found = match client.inspect_image(name).await {
        Ok(found) => found,
        Err(error) if errors::is_gone(&error) => return Ok(None),
        Err(error) => {
            let what = format!(
                "{} does not say whether it has image {name}",
                flavour.name()
            );
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
    let id = found.id.unwrap_or_else(|| name.to_owned());
    Ok(Some(Image::in_engine_store(id, config)))
}

async fn load(
    client: &Docker,
    flavour: Flavour,
    source: ImageSource,
    name: &str,
) -> Result<(), EngineError> {
    let (chunks, queue) = mpsc::channel(MAX_QUEUED_CHUNKS);
    let (label, name) = (source.label.clone(), name.to_owned());
    let reader = tokio::task::spawn_blocking(move || {
        let want = source.id.clone();
        let (mut archive, label) = source.open()?;
        let mut body = BufWriter::with_capacity(CHUNK_BYTES, Body(&chunks));
        let exported =
            image_archive::export(&mut archive, &label, want.as_deref(), &name, &mut body)
                .and_then(|()| {
                    body.flush()
                        .map_err(|error| ArchiveError::read(&label, error))
                });
        if exported.is_err() {
            // What is still in the buffer must not end the body, as if the archive were whole.
            let _ = body.into_parts();
            let _ = chunks.blocking_send(Err(io::Error::other("the archive is not sent further")));
        }
        exported
    });
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
    match reader.await {
        // The daemon ended the request; it says why.
        Ok(Err(ArchiveError::Read { source, .. })) if source.kind() == DAEMON_IS_GONE => {}
        // The true reason: the daemon sees only its end.
        Ok(Err(error)) => return Err(error.into()),
        Ok(Ok(())) | Err(_) => {}
    }
    outcome.map_err(|error| load_error(flavour, &label, error))
}

/// Sends what is written to it.
struct Body<'a>(&'a mpsc::Sender<Result<Bytes, io::Error>>);

impl Write for Body<'_> {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(chunk)));
        sent.map(|()| chunk.len())
            .map_err(|_| DAEMON_IS_GONE.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

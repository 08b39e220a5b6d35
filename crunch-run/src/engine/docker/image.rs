//! Gets the image into the daemon's own store, unless it is there: one loader at a time on this node.

use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::ImportImageOptionsBuilder;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::{Flavour, messages};
use crate::engine::EngineError;
use crate::image::{self, Archive, Image, ImageConfig, ImageError, ImageSource, lock};

/// The daemon answers when it has unpacked everything.
const LOAD_PATIENCE: Duration = Duration::from_secs(4 * 3600);
const PIECE: usize = 256 << 10;
/// Pieces of the archive that may wait for the daemon.
const MOST_WAITING: usize = 8;

pub async fn prepare(
    client: &Docker,
    flavour: Flavour,
    lock_dir: &Path,
    source: ImageSource,
) -> Result<Image, EngineError> {
    let known = source.id.as_deref().map(full_id);
    if let Some(id) = &known
        && let Some(image) = look(client, flavour, id).await?
    {
        return Ok(image);
    }
    let lock_file = lock_dir.join(format!("{}-load.lock", flavour.name()));
    let _loading = blocking(move || {
        lock::exclusive(&lock_file).map_err(|source| ImageError::Cache {
            path: lock_file,
            source,
        })
    })
    .await??;
    // Whoever comes second finds the image there.
    if let Some(id) = &known
        && let Some(image) = look(client, flavour, id).await?
    {
        return Ok(image);
    }
    let label = source.label.clone();
    let (archive, id) = blocking(move || open(source)).await??;
    if let Some(image) = look(client, flavour, &id).await? {
        return Ok(image);
    }
    load(client, flavour, archive, &label).await?;
    look(client, flavour, &id).await?.ok_or_else(|| {
        let (wanted, present) = (
            id,
            "something else, as the daemon that loaded it says".to_owned(),
        );
        ImageError::NotInArchive {
            label,
            wanted,
            present,
        }
        .into()
    })
}

fn full_id(id: &str) -> String {
    if id.starts_with("sha256:") {
        id.to_owned()
    } else {
        format!("sha256:{id}")
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| EngineError::Io {
            what: "loading the image was interrupted".to_owned(),
            source: io::Error::other(error),
        })
}

/// An archive that holds the image, at its beginning, and the image's id.
fn open(source: ImageSource) -> Result<(Box<dyn Archive>, String), ImageError> {
    let label = source.label;
    let read_failed = |source| ImageError::Read {
        label: label.clone(),
        source,
    };
    let mut archive = (source.open)().map_err(read_failed)?;
    let (id, _) = image::identify(&mut archive, &label, source.id.as_deref())?;
    archive.rewind().map_err(read_failed)?;
    Ok((archive, id))
}

async fn look(client: &Docker, flavour: Flavour, id: &str) -> Result<Option<Image>, EngineError> {
    let found = match client.inspect_image(id).await {
        Ok(found) => found,
        Err(error) if messages::is_gone(&error) => return Ok(None),
        Err(error) => {
            return Err(EngineError::Io {
                what: format!("{} does not say whether it has image {id}", flavour.name()),
                source: io::Error::other(error),
            });
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
    Ok(Some(Image::elsewhere(id.to_owned(), config)))
}

async fn load(
    client: &Docker,
    flavour: Flavour,
    archive: Box<dyn Archive>,
    label: &str,
) -> Result<(), EngineError> {
    let (pieces, waiting) = mpsc::channel(MOST_WAITING);
    let reader = tokio::task::spawn_blocking(move || read(archive, &pieces));
    let body = stream::unfold(waiting, async |mut waiting| {
        let piece: Result<Bytes, io::Error> = waiting.recv().await?;
        Some((piece, waiting))
    });
    let patient = client.clone().with_timeout(LOAD_PATIENCE);
    let options = ImportImageOptionsBuilder::new().quiet(true).build();
    let mut progress = Box::pin(patient.import_image_stream(options, body, None));
    let mut outcome = Ok(());
    // A failure stands in the middle of the answer, whatever the status was.
    while let Some(line) = progress.next().await {
        if let Err(error) = line {
            outcome = Err(error);
            break;
        }
    }
    drop(progress);
    // That the archive could not be read is the reason, if it is so; the daemon only sees it end.
    if let Ok(Err(source)) = reader.await {
        let label = label.to_owned();
        return Err(ImageError::Read { label, source }.into());
    }
    outcome.map_err(|error| refused(flavour, label, error))
}

/// Sends all of the archive, until it ends or nobody wants more of it.
fn read(
    mut archive: Box<dyn Archive>,
    pieces: &mpsc::Sender<Result<Bytes, io::Error>>,
) -> io::Result<()> {
    loop {
        let mut piece = vec![0; PIECE];
        let count = match archive.read(&mut piece) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let told = io::Error::new(error.kind(), "the archive cannot be read further");
                let _ = pieces.blocking_send(Err(told));
                return Err(error);
            }
        };
        piece.truncate(count);
        if count == 0 || pieces.blocking_send(Ok(piece.into())).is_err() {
            return Ok(());
        }
    }
}

fn refused(flavour: Flavour, label: &str, error: Error) -> EngineError {
    match messages::said(&error) {
        Some(reason) if !messages::is_nodes_fault(reason) => ImageError::Damaged {
            label: label.to_owned(),
            reason: format!("{} says: {reason}", flavour.name()),
        }
        .into(),
        _ => EngineError::Io {
            what: format!("{} cannot load image archive {label}", flavour.name()),
            source: io::Error::other(error),
        },
    }
}

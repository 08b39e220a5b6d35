//! Finds the container's image, a tar file in a collection. Reads it only if the node does not have
//! the image.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arvados_client::error::StatusCode;
use arvados_client::keep::KeepClient;
use arvados_client::manifest::{Entry, EntryKind, Extent, Manifest};
use arvados_client::{Client, Pdh};

use super::failure::Failure;
use super::keep_archive::KeepArchive;
use crate::attempt::runtime_status::Status;
use crate::verdict::Reason;
use container_engine::{Engine, EngineError};
use node_cache::image::{Archive, Image, ImageSource, digest_hex};

/// An image archive that is not read yet.
#[derive(Debug, Clone)]
pub struct ImageFile {
    /// Name for messages: collection and file.
    label: String,
    /// Image id, if the file name is one.
    id: Option<String>,
    /// Name of the content: that of the collection, and the file.
    content: String,
    extents: Vec<Extent>,
    size: u64,
}

impl ImageFile {
    pub async fn find(client: &Client, collection: &str) -> Result<Self, Failure> {
        let found = client.collection(collection).await.map_err(|error| {
            // A refused token does not mean that the image is missing.
            if error.status() == Some(StatusCode::UNAUTHORIZED) {
                Failure::of_call("the image's collection cannot be read", &error)
            } else if error.is_not_found() || error.is_denied() {
                user_error(
                    format!(
                        "the container's user can read no collection {collection} to take the image from: \
                         upload the image again, or ask for access to it"
                    ),
                    error.to_string(),
                )
            } else {
                Failure::NeverRan(format!("the image's collection cannot be read: {error}"))
            }
        })?;
        let manifest = Manifest::parse(&found.manifest_text).map_err(|error| {
            user_error(
                format!("the image's collection {collection} is damaged"),
                error.to_string(),
            )
        })?;
        let pdh = collection.parse().ok().or(found.portable_data_hash);
        let pdh = pdh.ok_or_else(|| {
            Failure::NeverRan(format!(
                "the API server does not name the content of {collection}"
            ))
        })?;
        Self::choose(collection, &pdh, &manifest)
    }

    fn choose(collection: &str, pdh: &Pdh, manifest: &Manifest) -> Result<Self, Failure> {
        let tree = manifest.tree();
        let names: Vec<(String, u64)> = tree
            .list("")
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(name, kind)| match kind {
                EntryKind::File { size } if name.ends_with(".tar") => Some((name.to_owned(), size)),
                _ => None,
            })
            .collect();
        let (name, size) = match names.as_slice() {
            [one] => one,
            [] => {
                return Err(user_error(
                    format!(
                        "collection {collection} holds no container image: no file at its top ends in .tar"
                    ),
                    format!("it has {} files", manifest.file_count()),
                ));
            }
            several => {
                return Err(user_error(
                    format!(
                        "collection {collection} does not say which container image to use: it has {} .tar files, and one is expected",
                        several.len()
                    ),
                    several
                        .iter()
                        .map(|(name, _)| name.as_str())
                        .collect::<Vec<_>>()
                        .join(", "),
                ));
            }
        };
        let extents = match tree.lookup(name) {
            Some(Entry::File(extents)) => extents.to_vec(),
            _ => Vec::new(),
        };
        let id = name
            .strip_suffix(".tar")
            .filter(|id| digest_hex(id).is_ok());
        Ok(Self {
            content: format!("{pdh}/{name}"),
            label: format!("{collection}/{name}"),
            id: id.map(str::to_owned),
            extents,
            size: *size,
        })
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// Prepares the image from the node's cache or from Keep.
    pub async fn prepare(
        &self,
        engine: &dyn Engine,
        keep: &KeepClient,
        status: &Status,
    ) -> Result<Image, EngineError> {
        let read = Arc::new(AtomicU64::new(0));
        let archive = KeepArchive::new(
            keep.clone(),
            self.extents.clone(),
            tokio::runtime::Handle::current(),
            read.clone(),
        );
        let source = ImageSource {
            id: self.id.clone(),
            content: self.content.clone(),
            label: self.label.clone(),
            open: Box::new(move || Ok(Box::new(archive) as Box<dyn Archive>)),
        };
        let preparing = engine.prepare_image(source);
        tokio::pin!(preparing);
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        loop {
            tokio::select! {
                prepared = &mut preparing => return prepared,
                () = tokio::time::sleep(std::time::Duration::from_millis(500)) => {
                    let done = mib(read.load(Ordering::Relaxed).min(self.size));
                    status.set_activity(Some(format!("fetching image {done}/{} MiB", mib(self.size))));
                }
            }
        }
    }
}

fn user_error(sentence: String, detail: String) -> Failure {
    Failure::UserError(Reason::new(sentence, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "acbd18db4cc2f85cedef654fccc4a4d8+3";
    const PDH: &str = "1f4b0bc7583c2a7f9102c395f4ffc5e3+45";

    fn choose(files: &[&str]) -> Result<ImageFile, String> {
        let text: String = files
            .iter()
            .map(|path| {
                let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
                format!("{dir} {BLOCK} 0:3:{name}\n")
            })
            .collect();
        let manifest = Manifest::parse(&text).unwrap();
        ImageFile::choose(PDH, &PDH.parse().unwrap(), &manifest).map_err(|failure| match failure {
            Failure::UserError(reason) => reason.sentence,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn exactly_one_archive_at_the_top_is_the_image() {
        let hex = "0".repeat(64);
        let name = format!("sha256:{hex}.tar");
        let found = choose(&[&name, "README", "./old/other.tar"]).unwrap();
        assert_eq!(found.id, Some(format!("sha256:{hex}")));
        assert_eq!((found.size, found.extents.len()), (3, 1));
        assert_eq!(choose(&["image.tar"]).unwrap().id, None);
        assert!(
            choose(&["README"])
                .unwrap_err()
                .contains("no file at its top")
        );
        assert!(
            choose(&["a.tar", "b.tar"])
                .unwrap_err()
                .contains("2 .tar files")
        );
    }
}

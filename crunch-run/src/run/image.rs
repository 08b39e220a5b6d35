//! The container's image: one tar file in a collection, read only if the node does not have the image yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arvados_client::Client;
use arvados_client::error::StatusCode;
use arvados_client::keep::KeepClient;
use arvados_client::manifest::{Entry, EntryKind, Extent, Manifest};

use super::archive::KeepArchive;
use super::failure::Failure;
use crate::engine::{Engine, EngineError};
use crate::image::{Archive, Image, ImageSource};
use crate::status::Status;
use crate::verdict::Reason;

/// The archive, not read yet.
#[derive(Debug, Clone)]
pub struct ImageFile {
    /// As people know it: collection and file.
    label: String,
    /// The image's id, if the file's name is one.
    id: Option<String>,
    extents: Vec<Extent>,
    size: u64,
}

impl ImageFile {
    pub async fn find(client: &Client, collection: &str) -> Result<Self, Failure> {
        let found = client.collection(collection).await.map_err(|error| {
            // The token itself is refused: that says nothing about the image.
            if error.status() == Some(StatusCode::UNAUTHORIZED) {
                Failure::of_call("the image's collection cannot be read", &error)
            } else if error.is_not_found() || error.is_denied() {
                mistake(
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
            mistake(
                format!("the image's collection {collection} is damaged"),
                error.to_string(),
            )
        })?;
        Self::choose(collection, &manifest)
    }

    fn choose(collection: &str, manifest: &Manifest) -> Result<Self, Failure> {
        let tree = manifest.tree();
        let names: Vec<(String, u64)> = tree
            .list("")
            .unwrap_or_default()
            .into_iter()
            .filter_map(|entry| match entry.kind {
                EntryKind::File { size } if entry.name.ends_with(".tar") => {
                    Some((entry.name.to_owned(), size))
                }
                _ => None,
            })
            .collect();
        let (name, size) = match names.as_slice() {
            [one] => one,
            [] => {
                return Err(mistake(
                    format!(
                        "collection {collection} holds no container image: no file at its top ends in .tar"
                    ),
                    format!("it has {} files", manifest.file_count()),
                ));
            }
            several => {
                return Err(mistake(
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
        let id = name.strip_suffix(".tar").filter(|id| is_id(id));
        Ok(Self {
            label: format!("{collection}/{name}"),
            id: id.map(str::to_owned),
            extents,
            size: *size,
        })
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// From the node's cache, or from Keep.
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
                    status.activity(Some(format!("fetching image {done}/{} MiB", mib(self.size))));
                }
            }
        }
    }
}

/// With or without `sha256:`, as both are in use.
fn is_id(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or(text);
    hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn mistake(sentence: String, detail: String) -> Failure {
    Failure::Mistake(Reason::new(sentence, detail))
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
        ImageFile::choose(PDH, &Manifest::parse(&text).unwrap()).map_err(|failure| match failure {
            Failure::Mistake(reason) => reason.sentence,
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

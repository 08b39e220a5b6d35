//! Uploads files and directories of this machine as a collection.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use arvados_client::keep::CollectionWriter;
use arvados_client::manifest::Manifest;
use arvados_client::records::Collection;
use arvados_client::{Client, Pdh};
use serde_json::json;
use tokio::io::AsyncRead;

use crate::error::CliError;
use crate::printer::{eprint_note, progress};

/// A file or empty directory to upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A file with its current size.
    File {
        /// Path in the collection.
        path: String,
        /// Path on this machine.
        local: PathBuf,
        /// Bytes.
        size: u64,
    },
    /// An empty directory.
    EmptyDirectory(String),
}

/// Lists the files to upload for `paths`: the content of a single directory at the root, anything
/// else under its name.
pub fn list_items(paths: &[PathBuf]) -> Result<Vec<Item>, CliError> {
    let mut items = Vec::new();
    let mut names = BTreeSet::new();
    for path in paths {
        let meta = metadata(path)?;
        let walk = &mut Walk {
            items: &mut items,
            ancestors: Vec::new(),
        };
        if meta.is_dir() && paths.len() == 1 {
            walk.directory(path, "", &meta)?;
            continue;
        }
        let name = own_name(path)?;
        if !names.insert(name.clone()) {
            return Err(CliError::NameTwice(name));
        }
        walk.entry(path, name, &meta)?;
    }
    Ok(items)
}

/// [`list_items`] on a thread for blocking calls.
pub async fn list_items_async(paths: Vec<PathBuf>) -> Result<Vec<Item>, CliError> {
    let listing = tokio::task::spawn_blocking(move || list_items(&paths));
    listing
        .await
        .map_err(|error| CliError::Runtime(std::io::Error::other(error)))?
}

/// The last component of a path, also of `.` and `dir/..`.
fn own_name(path: &Path) -> Result<String, CliError> {
    let named = match path.file_name() {
        Some(name) => PathBuf::from(name),
        None => fs::canonicalize(path)
            .ok()
            .and_then(|full| full.file_name().map(PathBuf::from))
            .ok_or_else(|| CliError::NotStorable(path.to_owned()))?,
    };
    let text = named.to_str().map(str::to_owned);
    text.ok_or(CliError::NameNotText(named))
}

/// Metadata of the target of a link: the upload follows symbolic links.
fn metadata(path: &Path) -> Result<Metadata, CliError> {
    fs::metadata(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => CliError::NoFile(path.to_owned()),
        _ => CliError::read(path)(source),
    })
}

struct Walk<'a> {
    items: &'a mut Vec<Item>,
    /// Device and inode of the parent directories, to detect link loops.
    ancestors: Vec<(u64, u64)>,
}

impl Walk<'_> {
    fn entry(&mut self, local: &Path, path: String, meta: &Metadata) -> Result<(), CliError> {
        if meta.is_dir() {
            self.directory(local, &path, meta)
        } else if meta.is_file() {
            self.items.push(Item::File {
                path,
                local: local.to_owned(),
                size: meta.len(),
            });
            Ok(())
        } else if self.ancestors.is_empty() {
            Err(CliError::NotStorable(local.to_owned()))
        } else {
            eprint_note(&format!(
                "{} is left out: it is a socket, pipe or device",
                local.display()
            ));
            Ok(())
        }
    }

    fn directory(&mut self, local: &Path, path: &str, meta: &Metadata) -> Result<(), CliError> {
        let id = (meta.dev(), meta.ino());
        if self.ancestors.contains(&id) {
            return Err(CliError::LinkLoop(local.to_owned()));
        }
        self.ancestors.push(id);
        let mut entries = fs::read_dir(local)
            .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
            .map_err(CliError::read(local))?;
        entries.sort_by_key(|entry| entry.file_name());
        if entries.is_empty() && !path.is_empty() {
            self.items.push(Item::EmptyDirectory(path.to_owned()));
        }
        for entry in entries {
            let here = entry.path();
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                return Err(CliError::NameNotText(here));
            };
            let below = match path {
                "" => name,
                path => format!("{path}/{name}"),
            };
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            match metadata(&here) {
                Err(CliError::NoFile(link)) if is_link => eprint_note(&format!(
                    "{} is left out: it is a link that leads nowhere",
                    link.display()
                )),
                meta => self.entry(&here, below, &meta?)?,
            }
        }
        self.ancestors.pop();
        Ok(())
    }
}

/// Uploads the content of the items. No collection refers to it yet.
pub async fn store(client: &Client, items: &[Item], what: &str) -> Result<Manifest, CliError> {
    let total = items.iter().map(|item| match item {
        Item::File { size, .. } => *size,
        Item::EmptyDirectory(_) => 0,
    });
    let bar = progress(total.sum(), what);
    let keep = client.keep(client.keep_options().await?).await?;
    let mut writer = CollectionWriter::new(keep);
    for item in items {
        match item {
            Item::EmptyDirectory(path) => writer.add_dir_placeholder(path)?,
            Item::File { path, local, .. } => {
                let file = tokio::fs::File::open(local).await;
                let file = file.map_err(CliError::read(local))?;
                writer.put_reader(path, bar.wrap_async_read(file)).await?;
            }
        }
    }
    let manifest = writer.finish().await?;
    bar.finish_and_clear();
    Ok(manifest)
}

/// Uploads one file of unknown length.
pub async fn store_stream(
    client: &Client,
    path: &str,
    input: impl AsyncRead + Unpin,
) -> Result<Manifest, CliError> {
    let keep = client.keep(client.keep_options().await?).await?;
    let mut writer = CollectionWriter::new(keep);
    writer.put_reader(path, input).await?;
    Ok(writer.finish().await?)
}

/// Creates the collection. Returns it and its portable data hash.
pub async fn save(
    client: &Client,
    manifest: &Manifest,
    name: &str,
) -> Result<(Collection, Pdh), CliError> {
    let attributes = json!({"manifest_text": manifest.to_string(), "name": name});
    let mut saved = client.create_collection(attributes).await?;
    let pdh = saved.portable_data_hash.take();
    Ok((saved, pdh.unwrap_or_else(|| manifest.pdh())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(items: &[Item]) -> Vec<&str> {
        items
            .iter()
            .map(|item| match item {
                Item::File { path, .. } => path.as_str(),
                Item::EmptyDirectory(path) => path.as_str(),
            })
            .collect()
    }

    #[test]
    fn one_directory_is_the_root_and_several_things_keep_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("d/sub/empty")).unwrap();
        fs::write(at("d/b"), "b").unwrap();
        fs::write(at("d/sub/c"), "c").unwrap();
        fs::write(at("a"), "a").unwrap();
        symlink("../a", at("d/link")).unwrap();
        let whole = list_items(&[at("d")]).unwrap();
        assert_eq!(names(&whole), ["b", "link", "sub/c", "sub/empty"]);
        let both = list_items(&[at("a"), at("d")]).unwrap();
        assert_eq!(names(&both)[..3], ["a", "d/b", "d/link"]);
        assert!(matches!(
            list_items(&[at("a"), at("d/../a")]),
            Err(CliError::NameTwice(_))
        ));
    }

    #[test]
    fn what_cannot_be_stored_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(matches!(
            list_items(&[at("none")]),
            Err(CliError::NoFile(_))
        ));
        fs::create_dir(at("d")).unwrap();
        symlink("..", at("d/up")).unwrap();
        assert!(matches!(list_items(&[at("d")]), Err(CliError::LinkLoop(_))));
        let socket = at("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(matches!(
            list_items(&[socket]),
            Err(CliError::NotStorable(_))
        ));
    }
}

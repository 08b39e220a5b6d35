//! Files and directories of this machine as a collection.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use arvados_client::Client;
use arvados_client::keep::CollectionWriter;
use arvados_client::manifest::Manifest;
use arvados_client::records::Collection;
use serde_json::json;
use tokio::io::AsyncRead;

use crate::failure::Failure;
use crate::output::{note, progress};

/// Something to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A file and its size now.
    File {
        /// Path in the collection.
        path: String,
        /// Path here.
        local: PathBuf,
        /// Bytes.
        size: u64,
    },
    /// A directory with nothing in it.
    EmptyDirectory(String),
}

/// What `paths` would become: the content of a single directory at the root, anything else under its own name.
pub fn plan(paths: &[PathBuf]) -> Result<Vec<Item>, Failure> {
    let mut items = Vec::new();
    let mut names = BTreeSet::new();
    for path in paths {
        let meta = look(path)?;
        let walk = &mut Walk {
            items: &mut items,
            above: Vec::new(),
        };
        if meta.is_dir() && paths.len() == 1 {
            walk.directory(path, "", &meta)?;
            continue;
        }
        let name = own_name(path)?;
        if !names.insert(name.clone()) {
            return Err(Failure::NameTwice(name));
        }
        walk.entry(path, name, &meta)?;
    }
    Ok(items)
}

/// [`plan`] where it does not hold up others.
pub async fn plan_aside(paths: Vec<PathBuf>) -> Result<Vec<Item>, Failure> {
    let planning = tokio::task::spawn_blocking(move || plan(&paths));
    planning
        .await
        .map_err(|error| Failure::Runtime(std::io::Error::other(error)))?
}

/// The last part of a path, also of `.` and `dir/..`.
fn own_name(path: &Path) -> Result<String, Failure> {
    let named = match path.file_name() {
        Some(name) => PathBuf::from(name),
        None => fs::canonicalize(path)
            .ok()
            .and_then(|full| full.file_name().map(PathBuf::from))
            .ok_or_else(|| Failure::NotStorable(path.to_owned()))?,
    };
    let text = named.to_str().map(str::to_owned);
    text.ok_or(Failure::NameNotText(named))
}

/// Follows links: what people see is what is stored.
fn look(path: &Path) -> Result<Metadata, Failure> {
    fs::metadata(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Failure::NoFile(path.to_owned()),
        _ => Failure::Read {
            path: path.to_owned(),
            source,
        },
    })
}

struct Walk<'a> {
    items: &'a mut Vec<Item>,
    /// Device and inode of the directories we are in, to notice links that lead back.
    above: Vec<(u64, u64)>,
}

impl Walk<'_> {
    fn entry(&mut self, local: &Path, path: String, meta: &Metadata) -> Result<(), Failure> {
        if meta.is_dir() {
            self.directory(local, &path, meta)
        } else if meta.is_file() {
            self.items.push(Item::File {
                path,
                local: local.to_owned(),
                size: meta.len(),
            });
            Ok(())
        } else if self.above.is_empty() {
            Err(Failure::NotStorable(local.to_owned()))
        } else {
            note(&format!(
                "{} is left out: it is a socket, pipe or device",
                local.display()
            ));
            Ok(())
        }
    }

    fn directory(&mut self, local: &Path, path: &str, meta: &Metadata) -> Result<(), Failure> {
        let id = (meta.dev(), meta.ino());
        if self.above.contains(&id) {
            return Err(Failure::LinkLoop(local.to_owned()));
        }
        self.above.push(id);
        let unreadable = |source| Failure::Read {
            path: local.to_owned(),
            source,
        };
        let mut entries = fs::read_dir(local)
            .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
            .map_err(unreadable)?;
        entries.sort_by_key(|entry| entry.file_name());
        if entries.is_empty() && !path.is_empty() {
            self.items.push(Item::EmptyDirectory(path.to_owned()));
        }
        for entry in entries {
            let here = entry.path();
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                return Err(Failure::NameNotText(here));
            };
            let below = match path {
                "" => name,
                path => format!("{path}/{name}"),
            };
            let meta = look(&here)?;
            self.entry(&here, below, &meta)?;
        }
        self.above.pop();
        Ok(())
    }
}

/// Stores the items' content; nothing refers to it yet.
pub async fn store(client: &Client, items: &[Item], what: &str) -> Result<Manifest, Failure> {
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
                let file = tokio::fs::File::open(local)
                    .await
                    .map_err(|source| Failure::Read {
                        path: local.clone(),
                        source,
                    })?;
                writer.put_reader(path, bar.wrap_async_read(file)).await?;
            }
        }
    }
    let manifest = writer.finish().await?;
    bar.finish_and_clear();
    Ok(manifest)
}

/// Stores one file of unknown length.
pub async fn store_stream(
    client: &Client,
    path: &str,
    input: impl AsyncRead + Unpin,
) -> Result<Manifest, Failure> {
    let keep = client.keep(client.keep_options().await?).await?;
    let mut writer = CollectionWriter::new(keep);
    writer.put_reader(path, input).await?;
    Ok(writer.finish().await?)
}

/// Makes the collection.
pub async fn save(client: &Client, manifest: &Manifest, name: &str) -> Result<Collection, Failure> {
    let attributes = json!({"manifest_text": manifest.to_string(), "name": name});
    Ok(client.create_collection(attributes).await?)
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
        let whole = plan(&[at("d")]).unwrap();
        assert_eq!(names(&whole), ["b", "link", "sub/c", "sub/empty"]);
        let both = plan(&[at("a"), at("d")]).unwrap();
        assert_eq!(names(&both)[..3], ["a", "d/b", "d/link"]);
        assert!(matches!(
            plan(&[at("a"), at("d/../a")]),
            Err(Failure::NameTwice(_))
        ));
    }

    #[test]
    fn what_cannot_be_stored_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(matches!(plan(&[at("none")]), Err(Failure::NoFile(_))));
        fs::create_dir(at("d")).unwrap();
        symlink("..", at("d/up")).unwrap();
        assert!(matches!(plan(&[at("d")]), Err(Failure::LinkLoop(_))));
        let socket = at("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(matches!(plan(&[socket]), Err(Failure::NotStorable(_))));
    }
}

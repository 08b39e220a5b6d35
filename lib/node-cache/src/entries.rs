//! Lists the entries of the cache: blocks, layers, leftovers.

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use host_state::lock::is_acquired;
use host_state::trash;
use serde::Serialize;

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A block of a collection.
    Block,
    /// An unpacked layer of an image.
    Layer,
    /// Left by an interrupted fill or removal.
    LeftOver,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// The hash in its name.
    pub name: String,
    pub path: PathBuf,
    /// Bytes on the disk.
    pub size: u64,
    pub used: SystemTime,
}

/// All entries of the cache directory, unordered. Entries removed meanwhile are left out.
pub fn all(cache: &Path) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for shard in list(&cache.join("blocks"))? {
        for file in list(&shard.path())? {
            found.extend(block(&file));
        }
    }
    for file in list(&cache.join("layers"))? {
        found.extend(layer(&file));
    }
    Ok(found)
}

/// The entries of a directory; none if it does not exist.
fn list(dir: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.collect(),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

fn block(file: &DirEntry) -> Option<Entry> {
    let data = file.metadata().ok()?;
    let name = file.file_name().into_string().ok()?;
    Some(Entry {
        kind: match is_hash(&name, 32) {
            true => Kind::Block,
            false => Kind::LeftOver,
        },
        name,
        path: file.path(),
        size: data.len(),
        used: data.modified().ok()?,
    })
}

fn layer(file: &DirEntry) -> Option<Entry> {
    let path = file.path();
    let name = file.file_name().into_string().ok()?;
    if !file.file_type().ok()?.is_dir() || trash::is_trash(&name) {
        // The locks; who removed one could let two in.
        return None;
    }
    let is_layer = is_hash(&name, 64);
    let dated = match is_layer {
        // Taken into use by locking it.
        true => path.with_extension("lock"),
        false => path.clone(),
    };
    let used = fs::metadata(dated).and_then(|data| data.modified());
    Some(Entry {
        kind: match is_layer {
            true => Kind::Layer,
            false => Kind::LeftOver,
        },
        name,
        size: size_of(&path),
        path,
        used: used.unwrap_or(SystemTime::UNIX_EPOCH),
    })
}

fn is_hash(name: &str, length: usize) -> bool {
    name.len() == length && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Bytes of the files below a directory; links are not followed.
fn size_of(dir: &Path) -> u64 {
    let mut sum = 0;
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => open.push(entry.path()),
                Ok(data) => sum += data.len(),
                Err(_) => {}
            }
        }
    }
    sum
}

impl Entry {
    /// The lock to hold while the entry is removed; `None` if the entry is in use.
    pub fn try_lock(&self) -> io::Result<Option<File>> {
        let lock = match self.kind {
            // Readers have the block open, and so keep its content.
            Kind::Block => return Ok(Some(File::open(&self.path)?)),
            Kind::Layer => self.path.with_extension("lock"),
            Kind::LeftOver => match self.path.extension() {
                // A layer's, which its filler removes as well: under the layer's lock.
                Some(_) if self.path.is_dir() => self.path.with_extension("lock"),
                _ => self.path.clone(),
            },
        };
        let file = OpenOptions::new()
            .create(self.kind != Kind::LeftOver)
            .truncate(false)
            .read(true)
            .write(true)
            .open(lock)?;
        Ok(is_acquired(file.try_lock())?.then_some(file))
    }
}

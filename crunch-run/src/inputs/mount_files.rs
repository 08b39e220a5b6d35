//! Sizes and creation of the files and directories behind mounts, and errors that name the mount.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use arvados_client::manifest::{Entry, Extent, FileTree, ManifestError};

use super::error::{MountError, Problem};
use super::plan::CollectionPath;
use super::scratch_files::{self, Access};

/// A bind that exists already.
pub struct PlacedBind {
    pub host: PathBuf,
    pub is_dir: bool,
    pub access: Access,
}

/// Total size of the files at a path of a collection, in bytes.
pub fn size(tree: &FileTree, path: &str) -> u64 {
    let sum = |extents: &[Extent]| extents.iter().map(|extent| extent.len).sum::<u64>();
    match tree.lookup(path) {
        Some(Entry::File(extents)) => sum(extents),
        Some(Entry::Directory) if path.is_empty() => {
            tree.files().map(|(_, extents)| sum(extents)).sum()
        }
        Some(Entry::Directory) => tree.subtree(path).map_or(0, |part| size(&part, "")),
        None => 0,
    }
}

pub fn write_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    scratch_files::create_file(path)?.write_all(bytes)?;
    scratch_files::set_mode(path, mode)
}

/// Creates the directory or empty file that another mount will cover.
pub fn mount_point(outer: &PlacedBind, relative: &str, is_dir: bool) -> io::Result<()> {
    let (dir, name) = relative.rsplit_once('/').unwrap_or(("", relative));
    scratch_files::create_dirs(&outer.host, Path::new(dir), outer.access)?;
    let path = outer.host.join(dir).join(name);
    match is_dir {
        true => scratch_files::create_dir(&path, Access::ReadOnly),
        false if path.is_file() => Ok(()),
        false => scratch_files::create_file(&path).map(drop),
    }
}

pub fn no_such_path(target: &str, part: &CollectionPath) -> MountError {
    MountError::Content {
        target: target.to_owned(),
        collection: part.collection.clone(),
        source: Box::new(ManifestError::NoSuchPath {
            path: part.path.clone(),
        }),
    }
}

pub fn failed(target: &(impl ToString + ?Sized), path: &Path, source: io::Error) -> MountError {
    MountError::Write {
        target: target.to_string(),
        path: path.to_owned(),
        source,
    }
}

/// In a new directory, only other mounts can be in the way.
pub fn occupied_or_failed(target: &impl ToString, path: &Path, source: io::Error) -> MountError {
    use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory};
    if scratch_files::is_bad_name(&source) {
        return Problem::TargetName.of(target.to_string());
    }
    match source.kind() {
        AlreadyExists | NotADirectory | IsADirectory => Problem::Occupied {
            path: target.to_string(),
            found: match path.is_dir() {
                true => "a directory",
                false => "a file",
            },
        }
        .of(target.to_string()),
        _ => failed(target, path, source),
    }
}

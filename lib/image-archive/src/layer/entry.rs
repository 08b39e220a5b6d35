//! One entry of a layer, validated: what it is called, what it becomes, and its attributes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use tar_core::parse::ParsedEntry;
use tar_core::{EntryType, SparseEntry};

use super::entry_names::relative;
use super::pax;

/// Prefix of a name that hides the same name of lower layers (OCI image spec, "Whiteouts").
const WHITEOUT: &[u8] = b".wh.";
/// Name that hides all that lower layers have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Maximum length of a link's target, as in the kernel.
const MAX_TARGET_BYTES: usize = 4095;

/// An entry of a layer.
#[derive(Debug)]
pub struct LayerEntry {
    /// Path below the root of the layer: neither absolute nor with "..". Empty for the root.
    pub path: PathBuf,
    pub kind: EntryKind,
    pub uid: u64,
    pub gid: u64,
    /// Permission bits, up to 0o7777.
    pub mode: u32,
    /// Seconds since 1970.
    pub mtime: i64,
    /// Extended attributes, without overlayfs's own: these would change the meaning of the layer.
    pub xattrs: Vec<(OsString, Vec<u8>)>,
}

/// What an entry becomes.
#[derive(Debug)]
pub enum EntryKind {
    Directory,
    File {
        /// Length of the file, in bytes.
        size: u64,
        /// The parts of the file that are in the archive, in order. The rest is holes.
        runs: Vec<Run>,
    },
    Symlink(OsString),
    /// Path of the other name, below the root of the layer.
    HardLink(PathBuf),
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
    /// Hides this name of lower layers.
    Whiteout(OsString),
    /// Hides all that lower layers have in the directory.
    Opaque,
    /// Says something about the archive and becomes nothing.
    Ignored,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub offset: u64,
    pub length: u64,
}

/// The map of a sparse file and its length.
pub struct SparseMap {
    pub entries: Vec<SparseEntry>,
    pub real_size: u64,
}

impl LayerEntry {
    /// The error says what the entry does, as the end of a sentence.
    pub fn new(entry: &ParsedEntry<'_>, sparse: Option<SparseMap>) -> Result<Self, String> {
        let no_records = || "has attributes that end early".to_owned();
        let records = pax::records(entry.pax.unwrap_or_default()).ok_or_else(no_records)?;
        check_numbers(&records)?;
        let path = relative(Path::new(OsStr::from_bytes(&entry.path)))?;
        Ok(Self {
            kind: kind(entry, &path, sparse, &records)?,
            path,
            uid: entry.uid,
            gid: entry.gid,
            mode: entry.mode & 0o7777,
            mtime: mtime(entry, &records)?,
            xattrs: xattrs(&records),
        })
    }
}

/// Records that say how the archive is to be read. The parser passes over values that are no
/// numbers.
fn check_numbers(records: &[(&[u8], &[u8])]) -> Result<(), String> {
    const SPARSE_LISTS: [&[u8]; 2] = [b"GNU.sparse.name", b"GNU.sparse.map"];
    for (key, value) in records {
        let is_number = matches!(*key, b"size" | b"uid" | b"gid")
            || (key.starts_with(b"GNU.sparse.") && !SPARSE_LISTS.contains(key));
        let parsed = std::str::from_utf8(value).map(str::parse::<u64>);
        if is_number && !matches!(parsed, Ok(Ok(_))) {
            let key = String::from_utf8_lossy(key);
            return Err(format!("has an attribute {key} that is no number"));
        }
    }
    Ok(())
}

fn kind(
    entry: &ParsedEntry<'_>,
    path: &Path,
    sparse: Option<SparseMap>,
    records: &[(&[u8], &[u8])],
) -> Result<EntryKind, String> {
    let is_regular = matches!(
        entry.entry_type,
        EntryType::Regular | EntryType::Continuous | EntryType::GnuSparse
    );
    // Old archives write a directory as a file whose name ends with a slash.
    let is_old_directory = entry.entry_type == EntryType::Regular && entry.path.ends_with(b"/");
    // 'D' is a directory with a list of its names (GNU tar, --incremental), 'V' a volume label.
    let is_directory = is_old_directory
        || matches!(
            entry.entry_type,
            EntryType::Directory | EntryType::Other(b'D')
        );
    if entry.entry_type == EntryType::Other(b'V') {
        return Ok(EntryKind::Ignored);
    }
    let name = path.file_name().map(OsStr::as_bytes);
    match name {
        // "./": the root itself.
        None if is_directory => return Ok(EntryKind::Directory),
        None => return Ok(EntryKind::Ignored),
        Some(OPAQUE) => return Ok(EntryKind::Opaque),
        Some(name) => {
            if let Some(hidden) = name.strip_prefix(WHITEOUT) {
                return whiteout(hidden);
            }
        }
    }
    if is_directory {
        return Ok(EntryKind::Directory);
    }
    let device = (
        entry.dev_major.unwrap_or_default(),
        entry.dev_minor.unwrap_or_default(),
    );
    Ok(match entry.entry_type {
        _ if is_regular => match sparse {
            Some(_) if entry.entry_type != EntryType::GnuSparse && !has_real_size(records) => {
                return Err("is a sparse file whose length is missing".to_owned());
            }
            Some(map) => sparse_file(map, entry.size)?,
            None if records
                .iter()
                .any(|(key, _)| key.starts_with(b"GNU.sparse.")) =>
            {
                return Err("is a sparse file of a form that is not supported".to_owned());
            }
            None => EntryKind::File {
                size: entry.size,
                runs: vec![Run {
                    offset: 0,
                    length: entry.size,
                }],
            },
        },
        EntryType::Symlink => EntryKind::Symlink(link_target(entry, "symbolic link")?),
        EntryType::Link => {
            let target = link_target(entry, "hard link")?;
            EntryKind::HardLink(relative(Path::new(&target))?)
        }
        EntryType::Char => EntryKind::CharDevice(device.0, device.1),
        EntryType::Block => EntryKind::BlockDevice(device.0, device.1),
        EntryType::Fifo => EntryKind::Fifo,
        other => {
            let kind = char::from(other.to_byte()).escape_default();
            return Err(format!(
                "is of a kind that is not supported (type '{kind}')"
            ));
        }
    })
}

fn whiteout(hidden: &[u8]) -> Result<EntryKind, String> {
    match hidden {
        b"" | b"." | b".." => Err("hides no file name".to_owned()),
        // Internal entries of aufs.
        hidden if hidden.starts_with(WHITEOUT) => Ok(EntryKind::Ignored),
        hidden => Ok(EntryKind::Whiteout(OsStr::from_bytes(hidden).to_owned())),
    }
}

fn link_target(entry: &ParsedEntry<'_>, what: &str) -> Result<OsString, String> {
    let target = entry.link_target.as_deref().unwrap_or_default();
    if target.is_empty() {
        return Err(format!("is a {what} without a target"));
    }
    if target.len() > MAX_TARGET_BYTES {
        return Err("has a target that is too long".to_owned());
    }
    if target.contains(&0) {
        return Err("has a target that no file system takes".to_owned());
    }
    Ok(OsString::from_vec(target.to_vec()))
}

/// The parser takes the stored size where the records lack the real one.
fn has_real_size(records: &[(&[u8], &[u8])]) -> bool {
    records
        .iter()
        .any(|(key, _)| matches!(*key, b"GNU.sparse.size" | b"GNU.sparse.realsize"))
}

/// Runs must follow each other, stay within the file, and be as long as the stored content.
fn sparse_file(map: SparseMap, stored: u64) -> Result<EntryKind, String> {
    let bad = || "is a sparse file whose map does not fit its content".to_owned();
    let mut end = 0u64;
    let mut content = 0u64;
    let mut runs = Vec::with_capacity(map.entries.len());
    for SparseEntry { offset, length } in map.entries {
        if offset < end {
            return Err(bad());
        }
        end = offset.checked_add(length).ok_or_else(bad)?;
        content += length;
        runs.push(Run { offset, length });
    }
    if end > map.real_size || content != stored {
        return Err(bad());
    }
    Ok(EntryKind::File {
        size: map.real_size,
        runs,
    })
}

/// The time of the header, or that of a record. The parser reads no times before 1970.
fn mtime(entry: &ParsedEntry<'_>, records: &[(&[u8], &[u8])]) -> Result<i64, String> {
    let record = records.iter().rfind(|(key, _)| *key == b"mtime");
    match record {
        Some((_, value)) => pax::seconds(value).ok_or_else(|| "has a time that is none".to_owned()),
        // A number of the header in base 256 may be negative: two's complement.
        None => Ok(entry.mtime as i64),
    }
}

fn xattrs(records: &[(&[u8], &[u8])]) -> Vec<(OsString, Vec<u8>)> {
    let named = records.iter().filter_map(|(key, value)| {
        let name = key.strip_prefix(b"SCHILY.xattr.")?;
        let is_overlay =
            name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.");
        (!is_overlay).then(|| (OsString::from_vec(name.to_vec()), value.to_vec()))
    });
    named.collect()
}

//! Packs a root directory as the only layer of an image. It is read twice: first for its hash,
//! which is at the beginning of the archive.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::EntryType;

use super::ImageError;
use crate::printer::eprint_note;

/// A directory, with the size and hash of its layer.
#[derive(Debug)]
pub struct RootDir {
    path: PathBuf,
    /// Size of the layer, in bytes.
    pub size: u64,
    /// 64 hexadecimal digits.
    pub diff_id: String,
}

impl RootDir {
    /// Reads the directory for size and hash.
    pub fn measure(path: &Path) -> Result<Self, ImageError> {
        let mut entries = fs::read_dir(path).map_err(ImageError::read(path))?;
        if entries.next().is_none() {
            return Err(ImageError::EmptyRoot(path.to_owned()));
        }
        let (size, diff_id) = write_layer(path, &mut io::sink(), true)?;
        let path = path.to_owned();
        Ok(Self {
            path,
            size,
            diff_id,
        })
    }

    /// Writes the layer. Fails if the directory has changed.
    pub fn write_again(&self, out: &mut dyn Write) -> Result<(), ImageError> {
        let (size, diff_id) = write_layer(&self.path, out, false)?;
        match size == self.size && diff_id == self.diff_id {
            true => Ok(()),
            false => Err(ImageError::Changed(self.path.clone())),
        }
    }
}

struct HashingWriter<'a> {
    out: &'a mut dyn Write,
    hash: Sha256,
    size: u64,
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

struct Layer<'a> {
    tar: tar::Builder<&'a mut dyn Write>,
    /// First name in the layer of files with several names.
    linked: HashMap<(u64, u64), PathBuf>,
    /// Uid and gid that become root in the container: those of the current user, unless it is root.
    mine: Option<(u32, u32)>,
    print_skipped: bool,
}

/// Returns the size of the layer and its hash in hexadecimal digits.
fn write_layer(
    root: &Path,
    out: &mut dyn Write,
    print_skipped: bool,
) -> Result<(u64, String), ImageError> {
    let me = rustix::process::geteuid();
    let mut out = HashingWriter {
        out,
        hash: Sha256::new(),
        size: 0,
    };
    let mut layer = Layer {
        tar: tar::Builder::new(&mut out),
        linked: HashMap::new(),
        mine: (!me.is_root()).then(|| (me.as_raw(), rustix::process::getegid().as_raw())),
        print_skipped,
    };
    layer.directory(root, Path::new(""))?;
    layer.tar.finish().map_err(ImageError::Pack)?;
    drop(layer);
    let hash = data_encoding::HEXLOWER.encode(&out.hash.finalize());
    Ok((out.size, hash))
}

impl Layer<'_> {
    fn directory(&mut self, path: &Path, name: &Path) -> Result<(), ImageError> {
        let mut entries = fs::read_dir(path)
            .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
            .map_err(ImageError::read(path))?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let (path, name) = (entry.path(), name.join(entry.file_name()));
            let meta = fs::symlink_metadata(&path).map_err(ImageError::read(&path))?;
            self.entry(&path, &name, &meta)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &Path, meta: &Metadata) -> Result<(), ImageError> {
        let failed = ImageError::read(path);
        let mut header = self.header(meta);
        let kind = meta.file_type();
        let id = (meta.dev(), meta.ino());
        if kind.is_dir() {
            self.empty_entry(header, EntryType::Directory, &name.join(""))?;
            self.directory(path, name)
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(failed)?;
            self.link(header, EntryType::Symlink, name, &target)
        } else if kind.is_fifo() {
            self.empty_entry(header, EntryType::Fifo, name)
        } else if !kind.is_file() {
            if self.print_skipped {
                let what = if kind.is_socket() { "socket" } else { "device" };
                eprint_note(&format!("{} is left out: it is a {what}", path.display()));
            }
            Ok(())
        } else if let Some(first) = self.linked.get(&id).cloned() {
            self.link(header, EntryType::Link, name, &first)
        } else {
            if meta.nlink() > 1 {
                self.linked.insert(id, name.to_owned());
            }
            header.set_size(meta.len());
            let mut content = File::open(path).map_err(&failed)?.take(meta.len());
            let appended = self.tar.append_data(&mut header, name, &mut content);
            // A shorter file than its header says would shift the rest of the archive.
            match content.limit() {
                0 => appended.map_err(failed),
                _ => Err(failed(appended.err().unwrap_or_else(became_shorter))),
            }
        }
    }

    fn empty_entry(
        &mut self,
        mut header: tar::Header,
        kind: EntryType,
        name: &Path,
    ) -> Result<(), ImageError> {
        header.set_entry_type(kind);
        let appended = self.tar.append_data(&mut header, name, io::empty());
        appended.map_err(ImageError::Pack)
    }

    fn link(
        &mut self,
        mut header: tar::Header,
        kind: EntryType,
        name: &Path,
        target: &Path,
    ) -> Result<(), ImageError> {
        header.set_entry_type(kind);
        let appended = self.tar.append_link(&mut header, name, target);
        appended.map_err(ImageError::Pack)
    }

    fn header(&self, meta: &Metadata) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_mode(meta.mode() & 0o7777);
        header.set_mtime(meta.mtime().max(0) as u64);
        let (uid, gid) = self.mine.unwrap_or((0, 0));
        header.set_uid(if meta.uid() == uid { 0 } else { meta.uid() }.into());
        header.set_gid(if meta.gid() == gid { 0 } else { meta.gid() }.into());
        header.set_size(0);
        header
    }
}

fn became_shorter() -> io::Error {
    io::Error::other("it became shorter while it was read")
}

//! Packs a root directory as the only layer of an image. It is read twice: first for its hash,
//! which is at the beginning of the archive.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

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
        let unreadable = |source| ImageError::Read {
            path: path.to_owned(),
            source,
        };
        if fs::read_dir(path).map_err(unreadable)?.next().is_none() {
            return Err(ImageError::EmptyRoot(path.to_owned()));
        }
        let mut out = HashingWriter {
            out: &mut io::sink(),
            hash: Sha256::new(),
            size: 0,
        };
        write_layer(path, &mut out, true)?;
        Ok(Self {
            path: path.to_owned(),
            size: out.size,
            diff_id: data_encoding::HEXLOWER.encode(&out.hash.finalize()),
        })
    }

    /// Writes the layer. Fails if the directory has changed.
    pub fn write_again(&self, out: &mut dyn Write) -> Result<(), ImageError> {
        let mut out = HashingWriter {
            out,
            hash: Sha256::new(),
            size: 0,
        };
        write_layer(&self.path, &mut out, false)?;
        let same = out.size == self.size
            && data_encoding::HEXLOWER.encode(&out.hash.finalize()) == self.diff_id;
        match same {
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

fn write_layer(root: &Path, out: &mut dyn Write, print_skipped: bool) -> Result<(), ImageError> {
    let me = rustix::process::geteuid();
    let mut layer = Layer {
        tar: tar::Builder::new(out),
        linked: HashMap::new(),
        mine: (!me.is_root()).then(|| (me.as_raw(), rustix::process::getegid().as_raw())),
        print_skipped,
    };
    layer.directory(root, Path::new(""))?;
    layer.tar.finish().map_err(ImageError::Pack)
}

impl Layer<'_> {
    fn directory(&mut self, path: &Path, name: &Path) -> Result<(), ImageError> {
        let failed = |source| ImageError::Read {
            path: path.to_owned(),
            source,
        };
        let mut entries = fs::read_dir(path)
            .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
            .map_err(failed)?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let (path, name) = (entry.path(), name.join(entry.file_name()));
            let meta = fs::symlink_metadata(&path).map_err(|source| ImageError::Read {
                path: path.clone(),
                source,
            })?;
            self.entry(&path, &name, &meta)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &Path, meta: &Metadata) -> Result<(), ImageError> {
        let failed = |source| ImageError::Read {
            path: path.to_owned(),
            source,
        };
        let mut header = self.header(meta);
        let kind = meta.file_type();
        if kind.is_dir() {
            header.set_entry_type(tar::EntryType::Directory);
            self.tar
                .append_data(&mut header, name.join(""), io::empty())
                .map_err(ImageError::Pack)?;
            return self.directory(path, name);
        }
        if kind.is_symlink() {
            let target = fs::read_link(path).map_err(failed)?;
            header.set_entry_type(tar::EntryType::Symlink);
            return self
                .tar
                .append_link(&mut header, name, target)
                .map_err(ImageError::Pack);
        }
        if kind.is_fifo() {
            header.set_entry_type(tar::EntryType::Fifo);
            return self
                .tar
                .append_data(&mut header, name, io::empty())
                .map_err(ImageError::Pack);
        }
        if !kind.is_file() {
            if self.print_skipped {
                let what = if kind.is_socket() { "socket" } else { "device" };
                eprint_note(&format!("{} is left out: it is a {what}", path.display()));
            }
            return Ok(());
        }
        if meta.nlink() > 1 {
            if let Some(first) = self.linked.get(&(meta.dev(), meta.ino())) {
                header.set_entry_type(tar::EntryType::Link);
                return self
                    .tar
                    .append_link(&mut header, name, first)
                    .map_err(ImageError::Pack);
            }
            self.linked
                .insert((meta.dev(), meta.ino()), name.to_owned());
        }
        header.set_size(meta.len());
        let content = ExactReader {
            file: File::open(path).map_err(failed)?,
            left: meta.len(),
        };
        self.tar
            .append_data(&mut header, name, content)
            .map_err(failed)
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

/// Reads exactly the size in the header. A shorter file would shift the rest of the archive, so it
/// is an error.
struct ExactReader {
    file: File,
    left: u64,
}

impl io::Read for ExactReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let got = self.file.read(&mut buffer[..want])?;
        if got == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it became shorter while it was read",
            ));
        }
        self.left -= got as u64;
        Ok(got)
    }
}

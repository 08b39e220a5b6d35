//! From whatever people have to one image, ready to be written as the archive that is stored.

use std::io::Write;
use std::path::Path;

use super::files::Files;
use super::root_dir::RootDir;
use super::select::{self, Chosen};
use super::{ImageError, ImageName, pack};

/// An image that was found and checked as far as that goes without reading all of it.
#[derive(Debug)]
pub struct Packed {
    /// 64 hexadecimal digits of the configuration's hash.
    pub id: String,
    /// About how many bytes [`Packed::write`] will write.
    pub size: u64,
    from: From,
}

#[derive(Debug)]
enum From {
    Files(Files, Chosen),
    Root(RootDir),
}

impl Packed {
    /// Looks what is at `path`: an archive, a layout, or a root directory.
    pub fn open(path: &Path, name: &ImageName) -> Result<Self, ImageError> {
        let meta = std::fs::metadata(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ImageError::NoFile(path.to_owned()),
            _ => ImageError::Read {
                path: path.to_owned(),
                source,
            },
        })?;
        if meta.is_dir() {
            let files = Files::Directory(path.to_owned());
            let unpacked = files.has("oci-layout")
                || (files.has("index.json") && path.join("blobs").is_dir())
                || files.has("manifest.json");
            return match unpacked {
                true => Self::of_files(files, name),
                false => Self::of_root(RootDir::measure(path)?),
            };
        }
        Self::of_files(Files::archive(path)?, name)
    }

    fn of_files(files: Files, name: &ImageName) -> Result<Self, ImageError> {
        let image = select::choose(&files, name)?;
        let mut size = 0;
        for layer in &image.layers {
            size += files.open(&layer.file)?.1;
        }
        Ok(Self {
            id: image.id.clone(),
            size,
            from: From::Files(files, image),
        })
    }

    fn of_root(root: RootDir) -> Result<Self, ImageError> {
        Ok(Self {
            id: pack::root_config(&root.diff_id).0,
            size: root.size,
            from: From::Root(root),
        })
    }

    /// Writes the archive. What is damaged shows while it is written, and fails.
    pub fn write(&self, out: &mut dyn Write) -> Result<(), ImageError> {
        match &self.from {
            From::Files(files, image) => pack::files(files, image, out),
            From::Root(root) => pack::root_dir(root, out),
        }
    }
}

#[cfg(test)]
mod tests;

//! Opens an image in any supported form. In: a path. Out: one image that can be written as an
//! archive.

use std::io::Write;
use std::path::Path;

use image_archive::ImageFiles;
use image_archive::layer::{self, LayerStream};
use indicatif::ProgressBar;

use super::files::Files;
use super::root_dir::RootDir;
use super::select::{self, SelectedImage};
use super::{ImageError, ImageName, pack};

/// An image that was found, and checked as far as possible without reading its layers.
#[derive(Debug)]
pub struct ImageSource {
    /// 64 hexadecimal digits of the configuration's hash.
    pub id: String,
    /// Approximate number of bytes that [`ImageSource::write`] writes.
    pub size: u64,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Files(Files, SelectedImage),
    Root(RootDir),
}

impl ImageSource {
    /// Opens the archive, layout or root directory at `path`.
    /// Of several images, the one that is called `name` there.
    pub fn open(
        path: &Path,
        name: Option<&ImageName>,
        architecture: &str,
    ) -> Result<Self, ImageError> {
        let meta = std::fs::metadata(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ImageError::NoFile(path.to_owned()),
            _ => ImageError::read(path)(source),
        })?;
        if meta.is_dir() {
            let files = Files::directory(path);
            let unpacked = files.contains("oci-layout")
                || (files.contains("index.json") && path.join("blobs").is_dir())
                || files.contains("manifest.json");
            return match unpacked {
                true => Self::of_files(files, name, architecture),
                false => Self::of_root(path),
            };
        }
        Self::of_files(Files::archive(path)?, name, architecture)
    }

    fn of_files(
        files: Files,
        name: Option<&ImageName>,
        architecture: &str,
    ) -> Result<Self, ImageError> {
        let image = select::choose(&files, name, architecture)?;
        let mut size = 0;
        for layer in &image.layers {
            size += files.open(&layer.name)?.1;
        }
        Ok(Self {
            id: image.id.clone(),
            size,
            origin: Origin::Files(files, image),
        })
    }

    fn of_root(path: &Path) -> Result<Self, ImageError> {
        let root = RootDir::measure(path)?;
        Ok(Self {
            id: pack::root_config(&root.diff_id).0,
            size: root.size,
            origin: Origin::Root(root),
        })
    }

    /// The names that the archive gives the image. An OCI layout may have a tag alone, which is no
    /// name.
    pub fn names(&self) -> Vec<ImageName> {
        let Origin::Files(_, image) = &self.origin else {
            return Vec::new();
        };
        let whole = image.names.iter().filter(|name| name.contains(':'));
        let mut names: Vec<ImageName> = whole.filter_map(|name| name.parse().ok()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Reads every layer and finds what a node would refuse when it unpacks the image, before the
    /// image is stored.
    pub fn check_layers(&self, bar: &ProgressBar) -> Result<(), ImageError> {
        // A directory is packed by this program.
        let Origin::Files(files, image) = &self.origin else {
            return Ok(());
        };
        for file in &image.layers {
            let reader = bar.wrap_read(files.open(&file.name)?.0);
            layer::check(LayerStream::open(reader, files.label(), &file.diff_id)?)?;
        }
        Ok(())
    }

    /// Writes the archive. Fails if a layer is damaged.
    pub fn write(&self, out: &mut dyn Write) -> Result<(), ImageError> {
        match &self.origin {
            Origin::Files(files, image) => pack::files(files, image, out),
            Origin::Root(root) => pack::root_dir(root, out),
        }
    }
}

#[cfg(test)]
mod tests;

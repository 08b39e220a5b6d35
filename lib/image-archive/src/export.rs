//! Writes one image of an archive as a docker-archive of its own, for a daemon.
//!
//! The names that the archive gives to its images are left out: the daemon would take them, and
//! its own images of these names would lose them. A daemon does not read a layer that it has, so
//! each is compared with its digest here.

use std::io::{self, Read, Write};

use serde_json::json;

use crate::layer::LayerStream;
use crate::{Archive, ArchiveError, Index};

const CONFIG: &str = "config.json";

/// Writes the image `want` (or the only one) under `name`. What was written is no whole archive if
/// this fails.
pub fn export<A: Archive>(
    archive: &mut A,
    label: &str,
    want: Option<&str>,
    name: &str,
    to: &mut impl Write,
) -> Result<(), ArchiveError> {
    let failed = |source| ArchiveError::read(label, source);
    let index = Index::read(&mut *archive, label)?;
    let image = index.select(&mut *archive, want)?;
    write_file(to, CONFIG, &image.config_file).map_err(failed)?;
    let names: Vec<String> = (0..image.layers.len())
        .map(|n| format!("{n}.tar"))
        .collect();
    for (name, layer) in names.iter().zip(&image.layers) {
        write_header(to, name, layer.size).map_err(failed)?;
        let from = layer.bytes(&mut *archive, label)?;
        let mut tee = Tee { from, to: &mut *to };
        LayerStream::open(&mut tee, label, &layer.diff_id)?.finish()?;
        // What a decompressor needs not read.
        io::copy(&mut tee, &mut io::sink()).map_err(failed)?;
        if tee.from.limit() > 0 {
            return Err(ArchiveError::damaged(
                label,
                "it ends within a layer".into(),
            ));
        }
        write_padding(to, layer.size).map_err(failed)?;
    }
    let manifest = json!([{"Config": CONFIG, "RepoTags": [name], "Layers": names}]);
    write_file(to, "manifest.json", manifest.to_string().as_bytes())
        .and_then(|()| to.write_all(&[0; 1024]))
        .map_err(failed)
}

fn write_file(to: &mut impl Write, name: &str, content: &[u8]) -> io::Result<()> {
    let size = content.len() as u64;
    write_header(to, name, size)?;
    to.write_all(content)?;
    write_padding(to, size)
}

fn write_header(to: &mut impl Write, name: &str, size: u64) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name)?;
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    to.write_all(header.as_bytes())
}

fn write_padding(to: &mut impl Write, size: u64) -> io::Result<()> {
    to.write_all(&[0; 512][..(size.next_multiple_of(512) - size) as usize])
}

/// Passes on what is read.
struct Tee<'a, R, W> {
    from: R,
    to: &'a mut W,
}

impl<R: Read, W: Write> Read for Tee<'_, R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.to.write_all(&buffer[..count])?;
        Ok(count)
    }
}

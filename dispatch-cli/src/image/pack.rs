//! Writes the archive that is stored: a docker-archive with one image.
//!
//! The bytes depend only on the image, so that an image that is stored twice shares its blocks.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde_json::json;
use sha2::{Digest, Sha256};

use image_archive::{ImageFiles, LayerFile, architecture};

use super::ImageError;
use super::files::Files;
use super::root_dir::RootDir;
use super::select::SelectedImage;

const COPY_BUFFER_BYTES: usize = 128 << 10;

/// Writes an image that exists as files.
pub fn files(files: &Files, image: &SelectedImage, out: &mut dyn Write) -> Result<(), ImageError> {
    let mut tar = begin(out, &image.id, &image.config, image.layers.len())?;
    for (number, layer) in image.layers.iter().enumerate() {
        let (from, size) = files.open(&layer.name)?;
        let header = header(&layer_name(number), size)?;
        let mut from = BufReader::with_capacity(COPY_BUFFER_BYTES, from);
        let begin = from.fill_buf().map_err(ImageError::Pack)?;
        let is_compressed = matches!(begin, [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..]);
        let hash = Sha256::new();
        let mut from = HashingReader { from, hash };
        tar.append(&header, &mut from).map_err(ImageError::Pack)?;
        check(files, layer, is_compressed, from.hash)?;
    }
    tar.finish().map_err(ImageError::Pack)
}

/// A damaged layer must not be stored. Compressed layers of a docker-archive cannot be checked
/// here; the node checks them when it unpacks them.
fn check(
    files: &Files,
    layer: &LayerFile,
    is_compressed: bool,
    hash: Sha256,
) -> Result<(), ImageError> {
    let digest = data_encoding::HEXLOWER.encode(&hash.finalize());
    let expected = match (&layer.blob, is_compressed) {
        (Some(hex), _) => hex.as_str(),
        (None, false) => layer.diff_id.trim_start_matches("sha256:"),
        (None, true) => return Ok(()),
    };
    match digest == expected {
        true => Ok(()),
        false => Err(files
            .damaged(format!(
                "layer {} has other content than its hash says",
                layer.name
            ))
            .into()),
    }
}

/// The id and configuration of an image with one layer made of `root`.
pub fn root_config(diff_id: &str) -> (String, Vec<u8>) {
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["/bin/sh"],
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]},
    });
    let config = config.to_string().into_bytes();
    let id = data_encoding::HEXLOWER.encode(&Sha256::digest(&config));
    (id, config)
}

/// Writes an image with one layer.
pub fn root_dir(root: &RootDir, out: &mut dyn Write) -> Result<(), ImageError> {
    let (id, config) = root_config(&root.diff_id);
    let mut tar = begin(out, &id, &config, 1)?;
    let header = header(&layer_name(0), root.size)?;
    let out = tar.get_mut();
    out.write_all(header.as_bytes()).map_err(ImageError::Pack)?;
    root.write_again(out)?;
    let padding = root.size.next_multiple_of(512) - root.size;
    out.write_all(&[0; 512][..padding as usize])
        .map_err(ImageError::Pack)?;
    tar.finish().map_err(ImageError::Pack)
}

/// Writes everything before the layers.
fn begin<'a>(
    out: &'a mut dyn Write,
    id: &str,
    config: &[u8],
    layers: usize,
) -> Result<tar::Builder<&'a mut dyn Write>, ImageError> {
    let mut tar = tar::Builder::new(out);
    let config_name = format!("{id}.json");
    let manifest = json!([{
        "Config": config_name,
        // Names are in links, which can change.
        "RepoTags": null,
        "Layers": (0..layers).map(layer_name).collect::<Vec<_>>(),
    }]);
    let manifest = manifest.to_string();
    for (name, content) in [
        ("manifest.json", manifest.as_bytes()),
        (config_name.as_str(), config),
    ] {
        let header = header(name, content.len() as u64)?;
        tar.append(&header, content).map_err(ImageError::Pack)?;
    }
    Ok(tar)
}

fn layer_name(number: usize) -> String {
    format!("layer-{number:03}.tar")
}

fn header(name: &str, size: u64) -> Result<tar::Header, ImageError> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).map_err(ImageError::Pack)?;
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    Ok(header)
}

/// Hashes what is read.
struct HashingReader<R> {
    from: R,
    hash: Sha256,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(buffer)?;
        self.hash.update(&buffer[..got]);
        Ok(got)
    }
}

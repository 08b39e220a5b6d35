//! Selects one image of a docker-archive or OCI layout, with the files it consists of.

use std::collections::BTreeSet;
use std::path::PathBuf;

use image_archive::{ArchiveError, Candidate, ImageFiles, LayerFile, candidates};

use super::files::Files;
use super::{ImageError, ImageName};

/// The selected image.
#[derive(Debug, Clone)]
pub struct SelectedImage {
    /// 64 hexadecimal digits of the configuration's hash.
    pub id: String,
    /// The configuration, unchanged.
    pub config: Vec<u8>,
    /// Lowest first.
    pub layers: Vec<LayerFile>,
    /// The names that the archive gives it.
    pub names: Vec<String>,
}

/// The only image, or the one that is called `name` in it.
pub fn choose(
    files: &Files,
    name: Option<&ImageName>,
    architecture: &str,
) -> Result<SelectedImage, ImageError> {
    let mut found = candidates(files, architecture)?;
    let mut seen = BTreeSet::new();
    found.retain(|image| seen.insert(image.ids[0].clone()));
    let chosen = match found.as_slice() {
        [only] => only,
        all => all
            .iter()
            .find(|image| {
                let is_called = |name| image.names.iter().any(|known| name_matches(known, name));
                name.is_some_and(is_called)
            })
            .ok_or_else(|| ImageError::Several {
                path: PathBuf::from(files.label()),
                present: all.iter().map(label).collect::<Vec<_>>().join(", "),
            })?,
    };
    if let Some(present) = chosen.other_platform(architecture) {
        let (label, wanted) = (files.label().to_owned(), format!("linux/{architecture}"));
        return Err(ArchiveError::OtherPlatform {
            label,
            present,
            wanted,
        }
        .into());
    }
    Ok(SelectedImage {
        id: hex(chosen).to_owned(),
        config: chosen.config.clone(),
        layers: chosen.open(files)?.1,
        names: chosen.names.clone(),
    })
}

fn hex(image: &Candidate) -> &str {
    image.ids[0].trim_start_matches("sha256:")
}

fn label(image: &Candidate) -> String {
    match image.names.first() {
        Some(name) => name.clone(),
        None => hex(image)[..12].to_owned(),
    }
}

/// Whether a name in an archive is `name`: archives have `busybox:1`, `docker.io/library/busybox:1`
/// or only `1`.
fn name_matches(known: &str, name: &ImageName) -> bool {
    let whole = name.to_string();
    known == whole || known == name.tag || known.ends_with(&format!("/{whole}"))
}

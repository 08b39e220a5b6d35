//! Images that this node refused, so that a bad or huge one is unpacked once and not by every
//! attempt. An entry is a file in `refused/`, named by the content of the archive.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ImageError;
use super::records::{self, is_young};
use crate::blocks::space;

/// Lifetime of an entry. A node's programs may be updated, and then take the image.
const REFUSAL_TTL: Duration = Duration::from_secs(24 * 3600);
/// The same for an image that did not fit: others may have taken the space meanwhile.
const NO_SPACE_TTL: Duration = Duration::from_secs(600);
/// Free space in bytes below which the node is at fault, not the image.
const MIN_FREE_BYTES: u64 = 1 << 30;

/// Why an image was refused.
#[derive(Debug, Serialize, Deserialize)]
enum Refusal {
    /// The image is at fault.
    Bad(String),
    /// It needs more than this number of free bytes.
    NeedsMoreThan(u64),
}

/// The refusals in a cache directory, and the image that is looked at.
pub struct RefusedImage {
    cache: PathBuf,
    path: PathBuf,
    label: String,
    free_at_start: u64,
}

impl RefusedImage {
    /// `key` stands for the content of the archive.
    pub fn of(cache: &Path, key: &str, label: &str) -> io::Result<Self> {
        Ok(Self {
            cache: cache.to_owned(),
            path: cache.join("refused").join(format!("{key}.json")),
            label: label.to_owned(),
            free_at_start: space(cache)?.free,
        })
    }

    /// An error if the image was refused recently and would be refused again.
    pub fn check(&self) -> Result<(), ImageError> {
        let age = fs::metadata(&self.path).and_then(|facts| facts.modified());
        let Ok(written) = age else {
            return Ok(());
        };
        if !is_young(written, REFUSAL_TTL) {
            return Ok(());
        }
        let text = fs::read(&self.path).unwrap_or_default();
        match serde_json::from_slice(&text) {
            Ok(Refusal::Bad(reason)) => Err(ImageError::RefusedBefore { reason }),
            // A little more space than then is not worth another try.
            Ok(Refusal::NeedsMoreThan(bytes))
                if is_young(written, NO_SPACE_TTL) && self.free_at_start <= bytes + bytes / 20 =>
            {
                Err(ImageError::TooLarge {
                    label: self.label.clone(),
                    needed: bytes,
                    cache: self.cache.clone(),
                    free: self.free_at_start,
                })
            }
            _ => Ok(()),
        }
    }

    /// Remembers an error that the next attempt would see again.
    pub fn remember(&self, error: &ImageError) {
        let refusal = match error {
            ImageError::Cache { source, .. }
                if source.kind() == io::ErrorKind::StorageFull
                    && self.free_at_start >= MIN_FREE_BYTES =>
            {
                Refusal::NeedsMoreThan(self.free_at_start)
            }
            error if error.is_image_fault() => Refusal::Bad(error.to_string()),
            _ => return,
        };
        if let Err(error) = records::write(&self.path, &refusal, REFUSAL_TTL) {
            tracing::warn!(path = %self.path.display(), %error, "could not remember a refused image");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn full() -> ImageError {
        ImageError::Cache {
            path: "/cache".into(),
            source: io::ErrorKind::StorageFull.into(),
        }
    }

    fn image(cache: &Path, free_at_start: u64) -> RefusedImage {
        RefusedImage {
            free_at_start,
            ..RefusedImage::of(cache, "0123", "label").unwrap()
        }
    }

    #[test]
    fn what_is_bad_stays_bad_and_what_is_large_may_fit_later() {
        let cache = tempfile::tempdir().unwrap();
        let gib = 1 << 30;
        let large = image(cache.path(), 10 * gib);
        large.check().unwrap();
        image(cache.path(), gib - 1).remember(&full());
        large.check().unwrap();
        large.remember(&full());
        for (free, expected) in [(5, false), (10, false), (20, true)] {
            let checked = image(cache.path(), free * gib).check();
            assert_eq!(checked.is_ok(), expected, "{free}");
            assert!(checked.is_ok() || !checked.unwrap_err().is_image_fault());
        }
        large.remember(&ImageError::RefusedBefore {
            reason: "a sentence".into(),
        });
        let error = image(cache.path(), u64::MAX).check().unwrap_err();
        assert!(error.is_image_fault());
        assert_eq!(error.to_string(), "a sentence");
        let other = RefusedImage::of(cache.path(), "4567", "label").unwrap();
        other.check().unwrap();
        // It is forgotten in the end.
        let old = SystemTime::now() - REFUSAL_TTL;
        let file = fs::File::options().write(true).open(&large.path).unwrap();
        file.set_modified(old).unwrap();
        large.check().unwrap();
        other.remember(&full());
        assert!(!large.path.exists());
    }
}

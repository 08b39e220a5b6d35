//! Block hashes and locators, which identify blocks of Keep.

use std::fmt;

use md5::{Digest, Md5};
use serde::Serialize;

/// Maximum size of a block, in bytes.
pub const MAX_BLOCK_SIZE: usize = 64 << 20;

/// The MD5 hash that identifies a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct BlockHash([u8; 16]);

impl BlockHash {
    /// The hash of `data`.
    pub fn of(data: &[u8]) -> Self {
        Self(Md5::digest(data).into())
    }

    /// The hash from a finished digest.
    pub fn from_digest(digest: Md5) -> Self {
        Self(digest.finalize().into())
    }

    /// Reads 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, LocatorError> {
        let bytes = data_encoding::HEXLOWER
            .decode(text.as_bytes())
            .ok()
            .and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        bytes
            .map(Self)
            .ok_or_else(|| LocatorError::Hash(text.to_owned()))
    }

    /// The digest as raw bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; 32];
        data_encoding::HEXLOWER.encode_mut(&self.0, &mut text);
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<BlockHash> for String {
    fn from(hash: BlockHash) -> String {
        hash.to_string()
    }
}

/// A block's address: its hash, its size, and hints such as a permission signature
/// (`HASH+SIZE+HINT…`).
///
/// ```
/// use arvados_client::locator::Locator;
/// let locator = Locator::parse("acbd18db4cc2f85cedef654fccc4a4d8+3+K@zzzzz").unwrap();
/// assert_eq!(locator.size, 3);
/// assert_eq!(locator.stripped().to_string(), "acbd18db4cc2f85cedef654fccc4a4d8+3");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    /// MD5 of the content.
    pub hash: BlockHash,
    /// Size of the content in bytes.
    pub size: u64,
    /// Everything after the size, in order, without the separating `+`.
    pub hints: Vec<String>,
}

impl Locator {
    /// A locator without hints.
    pub fn new(hash: BlockHash, size: u64) -> Self {
        Self {
            hash,
            size,
            hints: Vec::new(),
        }
    }

    /// The locator of `data`, without hints.
    pub fn of(data: &[u8]) -> Self {
        Self::new(BlockHash::of(data), data.len() as u64)
    }

    /// The locator of the empty block, which is never fetched.
    pub fn empty() -> Self {
        Self::of(&[])
    }

    /// Reads `HASH+SIZE` followed by any number of `+HINT`.
    pub fn parse(text: &str) -> Result<Self, LocatorError> {
        let mut parts = text.split('+');
        let hash = BlockHash::parse(parts.next().unwrap_or_default())?;
        let size = parts.next().unwrap_or_default();
        let is_number = size.bytes().all(|b| b.is_ascii_digit());
        let size = size.parse().ok().filter(|_| is_number);
        let size = size.ok_or_else(|| LocatorError::Size(text.to_owned()))?;
        let hints: Vec<String> = parts.map(str::to_owned).collect();
        if let Some(hint) = hints.iter().find(|hint| !is_hint(hint)) {
            return Err(LocatorError::Hint {
                locator: text.to_owned(),
                hint: hint.clone(),
            });
        }
        Ok(Self { hash, size, hints })
    }

    /// Hash and size only.
    pub fn stripped(&self) -> Self {
        Self::new(self.hash, self.size)
    }

    /// Without permission signatures (`+A…`, `+R…`); other hints stay.
    pub fn unsigned(&self) -> Self {
        let mut unsigned = self.clone();
        unsigned.hints.retain(|hint| !hint.starts_with(['A', 'R']));
        unsigned
    }
}

/// A capital letter, then letters, digits, `@`, `_` and `-`.
fn is_hint(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_uppercase())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'@' | b'_' | b'-'))
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.hash, self.size)?;
        for hint in &self.hints {
            write!(f, "+{hint}")?;
        }
        Ok(())
    }
}

/// Omits signatures, which together with a token are permissions and must not be logged.
impl fmt::Debug for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.hash, self.size)?;
        for hint in &self.hints {
            match hint.as_bytes().first() {
                Some(b'A') => f.write_str("+A…")?,
                Some(b'R') => f.write_str("+R…")?,
                _ => write!(f, "+{hint}")?,
            }
        }
        Ok(())
    }
}

/// Why a text is not a locator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocatorError {
    /// The first part is not 32 lower-case hexadecimal digits.
    #[error("{0:?} is not a block hash (32 lower-case hex digits)")]
    Hash(String),
    /// There is no size after the hash.
    #[error("block locator {0:?} has no size after its hash")]
    Size(String),
    /// A hint is not a capital letter followed by letters, digits, `@`, `_` or `-`.
    #[error("block locator {locator:?} has a malformed hint {hint:?}")]
    Hint {
        /// The whole text.
        locator: String,
        /// The part that is wrong.
        hint: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FOO: &str = "acbd18db4cc2f85cedef654fccc4a4d8";

    #[test]
    fn the_hash_is_the_md5_of_the_content() {
        assert_eq!(BlockHash::of(b"foo").to_string(), FOO);
        assert_eq!(
            Locator::empty().to_string(),
            "d41d8cd98f00b204e9800998ecf8427e+0"
        );
    }

    #[test]
    fn a_locator_is_printed_as_it_was_read() {
        let text = format!("{FOO}+3+K@zzzzz+Zx_y-z@1");
        let locator = Locator::parse(&text).unwrap();
        assert_eq!(locator.to_string(), text);
        assert_eq!(locator.hints, ["K@zzzzz", "Zx_y-z@1"]);
    }

    #[test]
    fn malformed_locators_are_refused() {
        let long = format!("{FOO}0+3");
        let cases = [
            "",
            "acbd",
            FOO,
            &long,
            &FOO.to_uppercase(),
            &format!("{FOO}+"),
            &format!("{FOO}+-3"),
            &format!("{FOO}++3"),
            &format!("{FOO}+K@zzzzz"),
            &format!("{FOO}+18446744073709551616"),
            &format!("{FOO}+3+"),
            &format!("{FOO}+3+a"),
            &format!("{FOO}+3+A b"),
            &format!("{FOO}+3+Aé"),
        ];
        for text in cases {
            assert!(Locator::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn hints_are_taken_off_by_kind() {
        let text = format!("{FOO}+3+A0@1+K@zzzzz+Rzzzzz-0@1");
        let locator = Locator::parse(&text).unwrap();
        assert_eq!(locator.stripped().to_string(), format!("{FOO}+3"));
        assert_eq!(locator.unsigned().to_string(), format!("{FOO}+3+K@zzzzz"));
        assert_eq!(format!("{locator:?}"), format!("{FOO}+3+A…+K@zzzzz+R…"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,60}") {
            if let Ok(locator) = Locator::parse(&text) {
                prop_assert_eq!(Locator::parse(&locator.to_string()).unwrap(), locator);
            }
        }
    }
}

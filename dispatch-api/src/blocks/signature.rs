//! Signatures of blocks: whoever has one may read its block, with one token and for a while. They
//! are checked in requests for a block and in manifests that a client saves, and given with
//! manifests.

use std::borrow::Cow;

use arvados_client::keep::{BlockHash, Locator};
use jiff::Timestamp;

use crate::error::{ApiError, Result};

/// Lifetime in seconds of a block signature: two weeks.
pub const SIGNATURE_TTL: u64 = 14 * 24 * 3600;

/// Signs and checks locators for one token.
pub struct BlockSigner {
    key: String,
    /// Whether the signature covers the size too, which it does not in Arvados.
    sizes_signed: bool,
}

impl BlockSigner {
    pub fn new(key: String, sizes_signed: bool) -> Self {
        BlockSigner { key, sizes_signed }
    }

    /// Whether the locator has a signature for this token that has not expired at `now`, in
    /// seconds since 1970.
    pub fn is_valid(&self, locator: &Locator, token: &str, now: u64) -> bool {
        let token = self.signed_text(locator, token);
        locator
            .verify(self.key.as_bytes(), &token, now, SIGNATURE_TTL)
            .is_ok()
    }

    /// Checks that every block has a valid signature for this token.
    pub fn check(&self, text: &str, token: &str) -> Result<()> {
        let now = unix_time();
        let nothing = BlockHash::of(b"");
        for locator in locators(text) {
            // The empty block contains no data to protect. Only its hash identifies it: the size
            // hint can be anything.
            if locator.hash != nothing && !self.is_valid(&locator, token, now) {
                return Err(ApiError::denied(format!(
                    "block {} is not signed for this token",
                    locator.stripped()
                )));
            }
        }
        Ok(())
    }

    /// Signs a block for one token.
    pub fn sign_locator(&self, locator: &Locator, token: &str) -> Locator {
        let expiry = unix_time() + SIGNATURE_TTL;
        let token = self.signed_text(locator, token);
        locator.sign(self.key.as_bytes(), &token, expiry, SIGNATURE_TTL)
    }

    /// Signs every block of the manifest for one token.
    pub fn sign(&self, text: &str, token: &str) -> String {
        replace_locators(text, |locator| {
            self.sign_locator(locator, token).to_string()
        })
    }

    /// The text that the signature covers beside hash, expiry and lifetime.
    fn signed_text<'a>(&self, locator: &Locator, token: &'a str) -> Cow<'a, str> {
        match self.sizes_signed {
            true => format!("{}@{token}", locator.size).into(),
            false => token.into(),
        }
    }
}

/// Removes the signatures of every block of the manifest.
pub fn strip(text: &str) -> String {
    replace_locators(text, |locator| locator.stripped().to_string())
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(0)
}

/// The locators in a manifest.
pub fn locators(text: &str) -> impl Iterator<Item = Locator> {
    text.split([' ', '\n'])
        .filter_map(|word| Locator::parse(word).ok())
}

/// Replaces only the locators, so that the text keeps its shape and its hash.
fn replace_locators(text: &str, change: impl Fn(&Locator) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive([' ', '\n']) {
        let word = piece.trim_end_matches([' ', '\n']);
        match Locator::parse(word) {
            Ok(locator) => {
                out.push_str(&change(&locator));
                out.push_str(&piece[word.len()..]);
            }
            Err(_) => out.push_str(piece),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo.txt\n";

    #[test]
    fn a_signature_is_good_for_its_token_key_and_size_only() {
        let signer = |key: &str, sizes_signed| BlockSigner::new(key.into(), sizes_signed);
        let (own, other) = (signer("key", true), signer("other", true));
        let arvados = signer("key", false);
        let signed = own.sign(TEXT, "v2/u/s");
        own.check(&signed, "v2/u/s").unwrap();
        for (text, signer, token) in [
            (signed.as_str(), &own, "s"),
            (signed.as_str(), &other, "v2/u/s"),
            (signed.as_str(), &arvados, "v2/u/s"),
            (&signed.replace("+3+", "+4+"), &own, "v2/u/s"),
            (TEXT, &own, "v2/u/s"),
            (&TEXT.replace("+3", "+0"), &own, "v2/u/s"),
            (&TEXT.replace("+3", "+00"), &own, "v2/u/s"),
            (&TEXT.replace("+3", "+0+A00@0"), &own, "v2/u/s"),
        ] {
            let error = signer.check(text, token).unwrap_err();
            assert_eq!(error.status().as_u16(), 403, "{text}");
        }
        let signed = arvados.sign(TEXT, "v2/u/s");
        arvados
            .check(&signed.replace("+3+", "+4+"), "v2/u/s")
            .unwrap();
        let empty = ". d41d8cd98f00b204e9800998ecf8427e+0 0:0:empty\n";
        own.check(empty, "v2/u/s").unwrap();
    }
}

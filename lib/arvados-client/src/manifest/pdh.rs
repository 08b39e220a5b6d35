//! The portable data hash: MD5 and length of a manifest's text without the hints of its locators.

use md5::{Digest, Md5};

use crate::ids::Pdh;
use crate::locator::BlockHash;

/// The text with every locator reduced to hash and size.
pub fn portable_text(text: &str) -> String {
    let mut portable = String::with_capacity(text.len());
    for_each_piece(text, |piece| portable.push_str(piece));
    portable
}

/// The portable data hash of the text of a manifest.
pub fn portable_data_hash(text: &str) -> Pdh {
    let mut digest = Md5::new();
    let mut length = 0usize;
    for_each_piece(text, |piece| {
        digest.update(piece);
        length += piece.len();
    });
    let hash = BlockHash::from_digest(digest);
    Pdh::parse(&format!("{hash}+{length}")).expect("a hash and a size are a portable data hash")
}

/// Calls `f` with the pieces whose concatenation is the portable text.
fn for_each_piece<'a>(text: &'a str, mut f: impl FnMut(&'a str)) {
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        let mut first = true;
        for token in line.split(' ') {
            if !first {
                f(" ");
            }
            // The first token is always the name of the stream, even if it looks like a locator.
            f(if first { token } else { without_hints(token) });
            first = false;
        }
        f(end);
    }
}

/// A locator without its hints; anything else unchanged.
fn without_hints(token: &str) -> &str {
    let is_locator = token.len() > 33
        && token.as_bytes()[32] == b'+'
        && token.as_bytes()[..32].iter().all(u8::is_ascii_hexdigit);
    if !is_locator {
        return token;
    }
    match token[33..].find('+') {
        Some(at) => &token[..33 + at],
        None => token,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FOO: &str = "acbd18db4cc2f85cedef654fccc4a4d8+3";

    #[test]
    fn the_empty_manifest_has_the_well_known_hash() {
        assert_eq!(
            portable_data_hash("").as_str(),
            "d41d8cd98f00b204e9800998ecf8427e+0"
        );
    }

    #[test]
    fn only_locators_lose_their_hints() {
        let text = format!("./{FOO}+x {FOO}+A0@1+K@zzzzz {FOO} 0:3:a+b+c\n");
        let portable = format!("./{FOO}+x {FOO} {FOO} 0:3:a+b+c\n");
        assert_eq!(portable_text(&text), portable);
        assert_eq!(portable_data_hash(&text), portable_data_hash(&portable));
    }

    proptest! {
        #[test]
        fn stripping_twice_changes_nothing_more(text in "[a-f0-9 +\n:é]{0,200}") {
            let once = portable_text(&text);
            prop_assert_eq!(portable_text(&once), once);
        }
    }
}

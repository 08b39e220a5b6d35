//! The portable data hash: MD5 and length of a manifest's text without the hints of its locators.

use md5::{Digest, Md5};

use crate::ids::Pdh;
use crate::locator::BlockHash;

/// The portable data hash of the text of a manifest.
pub fn portable_data_hash(text: &str) -> Pdh {
    let mut digest = Md5::new();
    let mut length = 0;
    for piece in pieces(text) {
        digest.update(piece);
        length += piece.len();
    }
    let hash = BlockHash::from_digest(digest);
    Pdh::parse(&format!("{hash}+{length}")).expect("a hash and a size are a portable data hash")
}

/// The pieces of the portable text: every locator is reduced to hash and size.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n').flat_map(|line| {
        // The first token is always the name of the stream, even if it looks like a locator.
        let end_of_name = line.find(' ').map_or(line.len(), |at| at + 1);
        let (name, tokens) = line.split_at(end_of_name);
        let tokens = tokens.split_inclusive([' ', '\n']).flat_map(|token| {
            let (token, end) = token.split_at(token.trim_end_matches([' ', '\n']).len());
            [without_hints(token), end]
        });
        std::iter::once(name).chain(tokens)
    })
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
        assert_eq!(pieces(&text).collect::<String>(), portable);
        assert_eq!(portable_data_hash(&text), portable_data_hash(&portable));
    }

    proptest! {
        #[test]
        fn stripping_twice_changes_nothing_more(text in "[a-f0-9 +\n:é]{0,200}") {
            let once = pieces(&text).collect::<String>();
            prop_assert_eq!(pieces(&once).collect::<String>(), once);
        }
    }
}

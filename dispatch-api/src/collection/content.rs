//! Manifest text as the server needs it: checked, unsigned for storage, signed for a reader.

use arvados_client::keep::{BlockHash, Locator};
use arvados_client::manifest::{self, Manifest};
use jiff::Timestamp;

use crate::error::{ApiError, Result};

/// How long a signature given out is good for: two weeks.
pub const SIGNATURE_TTL: u64 = 14 * 24 * 3600;

/// What is stored of a manifest.
#[derive(Debug, PartialEq)]
pub struct Content {
    pub text: String,
    pub pdh: String,
    pub file_count: u64,
    pub total_size: u64,
}

impl Content {
    /// Check a manifest and take its signatures off.
    pub fn parse(text: &str) -> Result<Content> {
        let manifest = Manifest::parse(text).map_err(|problem| {
            ApiError::invalid(format!("Manifest text is not valid: {problem}"))
        })?;
        let text = map_locators(text, |locator| locator.stripped().to_string());
        Ok(Content {
            pdh: manifest::portable_data_hash(&text).to_string(),
            file_count: manifest.file_count(),
            total_size: manifest.total_size(),
            text,
        })
    }
}

/// Every block must carry a signature that is valid for this token.
pub fn check_signatures(text: &str, key: &str, token: &str) -> Result<()> {
    let now = now_unix();
    let nothing = BlockHash::of(b"");
    for locator in locators(text) {
        // The empty block holds nothing to protect. It is known by its hash: a size can be anything.
        if locator.hash != nothing
            && locator
                .verify(key.as_bytes(), token, now, SIGNATURE_TTL)
                .is_err()
        {
            return Err(ApiError::Denied(format!(
                "#<ArvadosModel::PermissionDeniedError: block {} is not signed for this token>",
                locator.stripped()
            )));
        }
    }
    Ok(())
}

/// The manifest with every block signed for one token.
pub fn signed(text: &str, key: &str, token: &str) -> String {
    let expiry = now_unix() + SIGNATURE_TTL;
    map_locators(text, |locator| {
        locator
            .sign(key.as_bytes(), token, expiry, SIGNATURE_TTL)
            .to_string()
    })
}

pub fn now_unix() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(0)
}

/// The log of one container as a request shows it: at the root and in a directory of its own. Directories
/// of earlier containers, found in the collection so far, stay.
pub fn log_manifest(before: &str, log: &str, container_uuid: &str) -> String {
    const DIRECTORY: &str = "./log\\040for\\040container\\040";
    let own = format!("{DIRECTORY}{container_uuid}");
    let mut lines: Vec<String> = log.lines().map(str::to_owned).collect();
    let is_own = |stream: &str| stream == own || stream.starts_with(&format!("{own}/"));
    lines.extend(
        before
            .lines()
            .filter(|line| {
                let stream = line.split(' ').next().unwrap_or("");
                stream.starts_with(DIRECTORY) && !is_own(stream)
            })
            .map(str::to_owned),
    );
    lines.extend(log.lines().filter_map(|line| {
        let (stream, rest) = line.split_once(' ')?;
        Some(format!("{own}{} {rest}", stream.strip_prefix('.')?))
    }));
    lines.sort();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn locators(text: &str) -> impl Iterator<Item = Locator> {
    text.split([' ', '\n'])
        .filter_map(|word| Locator::parse(word).ok())
}

/// Rewrite the locators and nothing else, so that the text keeps its shape and its hash.
fn map_locators(text: &str, change: impl Fn(&Locator) -> String) -> String {
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
    const UUID: &str = "local-dz642-0123456789abcde";

    #[test]
    fn content_is_counted_and_hashed_without_signatures() {
        let token = "v2/u/s";
        let signed = signed(TEXT, "key", token);
        assert_ne!(signed, TEXT);
        let content = Content::parse(&signed).unwrap();
        assert_eq!(content.text, TEXT);
        assert_eq!(content.pdh, "83367e8913dcec0bf3fc25ed5a27eacb+49");
        assert_eq!((content.file_count, content.total_size), (1, 3));
        let empty = Content::parse("").unwrap();
        assert_eq!(empty.pdh, "d41d8cd98f00b204e9800998ecf8427e+0");
    }

    #[test]
    fn a_signature_is_good_for_its_token_and_key_only() {
        let signed = signed(TEXT, "key", "v2/u/s");
        check_signatures(&signed, "key", "v2/u/s").unwrap();
        for (text, key, token) in [
            (signed.as_str(), "key", "s"),
            (signed.as_str(), "other", "v2/u/s"),
            (TEXT, "key", "v2/u/s"),
            (&TEXT.replace("+3", "+0"), "key", "v2/u/s"),
            (&TEXT.replace("+3", "+00"), "key", "v2/u/s"),
            (&TEXT.replace("+3", "+0+A00@0"), "key", "v2/u/s"),
        ] {
            let error = check_signatures(text, key, token).unwrap_err();
            assert_eq!(error.status().as_u16(), 403, "{text}");
        }
        let empty = ". d41d8cd98f00b204e9800998ecf8427e+0 0:0:empty\n";
        check_signatures(empty, "key", "v2/u/s").unwrap();
    }

    proptest::proptest! {
        #[test]
        fn signing_changes_nothing_but_the_signatures(
            blocks in proptest::collection::vec(("[0-9a-f]{32}", 1_u64..100), 1..5),
            names in proptest::collection::btree_set("[a-z]{1,8}", 1..5),
            token in "[a-z0-9/]{1,40}",
        ) {
            let size: u64 = blocks.iter().map(|(_, size)| size).sum();
            let locators: String = blocks.iter().map(|(hash, size)| format!(" {hash}+{size}")).collect();
            let files: String = names.iter().map(|name| format!(" 0:{size}:{name}")).collect();
            let text = format!(".{locators}{files}\n");
            let signed = signed(&text, "key", &token);
            check_signatures(&signed, "key", &token).unwrap();
            let content = Content::parse(&signed).unwrap();
            proptest::prop_assert_eq!(&content.text, &text);
            proptest::prop_assert_eq!(content.file_count, names.len() as u64);
            proptest::prop_assert_eq!(content.pdh, Content::parse(&text).unwrap().pdh);
        }
    }

    #[test]
    fn malformed_manifests_are_refused() {
        for text in [". abc 0:0:x\n", TEXT.trim_end(), "foo\n"] {
            assert_eq!(
                Content::parse(text).unwrap_err().status().as_u16(),
                422,
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_log_appears_at_the_root_and_under_its_container_and_earlier_ones_stay() {
        let first = log_manifest("", TEXT, UUID);
        let block = "acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo.txt";
        let own = format!("./log\\040for\\040container\\040{UUID} {block}\n");
        assert_eq!(first, format!(". {block}\n{own}"));
        Content::parse(&first).unwrap();

        let other = UUID.replace('0', "1");
        let second = log_manifest(&first, TEXT, &other);
        assert_eq!(second.lines().count(), 3);
        assert!(second.contains(&own));
        assert_eq!(
            log_manifest(&second, TEXT, &other),
            second,
            "saving again changes nothing"
        );
    }
}

//! Manifest text: validated, and stripped of signatures for storage.

use arvados_client::manifest::{self, Manifest};
use serde_json::Value;

use crate::auth::Caller;
use crate::blocks::signature::{self, BlockSigner};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::COLLECTIONS;

/// Maximum number of directories in the name of a stream, or of a file within it. File systems
/// allow paths of 4,096 bytes.
const MAX_DEPTH: usize = 1024;

/// The stored part of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestContent {
    pub text: String,
    pub pdh: String,
    pub file_count: u64,
    pub total_size: u64,
}

impl ManifestContent {
    /// Takes the manifest out of the attributes that a client sent; `None` if they have none. Only
    /// administrators may name blocks without a valid signature.
    ///
    /// A manifest may have millions of blocks, so this is done before the write, which all others
    /// wait for.
    pub fn take_from_client(
        attributes: &mut Record,
        signer: &BlockSigner,
        caller: &Caller,
    ) -> Result<Option<ManifestContent>> {
        let Some(given) = attributes.0.remove("manifest_text") else {
            return Ok(None);
        };
        let attr = COLLECTIONS.public_attr("manifest_text");
        let text = attr.map(|attr| attr.coerce(given.value())).transpose()?;
        let text = text.as_deref().and_then(Value::as_str).unwrap_or_default();
        if !caller.without_attempt_privileges().is_admin {
            signer.check(text, &caller.presented_token)?;
        }
        Self::parse(text).map(Some)
    }

    /// The content of a stored collection.
    pub fn of_stored(collection: &Record) -> ManifestContent {
        let count = |name| collection.int(name).unsigned_abs();
        ManifestContent {
            text: collection.text("manifest_text").to_owned(),
            pdh: collection.text("portable_data_hash").to_owned(),
            file_count: count("file_count"),
            total_size: count("file_size_total"),
        }
    }

    /// Validates a manifest and removes its signatures.
    pub fn parse(text: &str) -> Result<ManifestContent> {
        let manifest = Manifest::parse(text).map_err(|problem| {
            ApiError::invalid(format!("Manifest text is not valid: {problem}"))
        })?;
        // Every backslash of a valid manifest begins an escape of three digits.
        if text.contains("\\000") || text.contains('\0') {
            return Err(ApiError::invalid(
                "Manifest text is not valid: a name has a zero byte (\\000), which no file can have",
            ));
        }
        if text
            .split([' ', '\n'])
            .any(|word| word.matches('/').count() > MAX_DEPTH)
        {
            return Err(ApiError::invalid(format!(
                "Manifest text is not valid: a path has more than {MAX_DEPTH} directories"
            )));
        }
        let text = signature::strip(text);
        Ok(ManifestContent {
            pdh: manifest::portable_data_hash(&text).to_string(),
            file_count: manifest.file_count(),
            total_size: manifest.total_size(),
            text,
        })
    }
}

/// Merges the log of one container into the manifest of a request's log collection. It appears at
/// the root and in a directory of its own. Directories of earlier containers stay.
pub fn merge_log(before: &str, log: &str, container_uuid: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::signature::BlockSigner;

    const TEXT: &str = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo.txt\n";
    const UUID: &str = "local-dz642-0123456789abcde";

    #[test]
    fn content_is_counted_and_hashed_without_signatures() {
        let signer = BlockSigner::new("key".into(), true);
        let signed = signer.sign(TEXT, "v2/u/s");
        assert_ne!(signed, TEXT);
        let content = ManifestContent::parse(&signed).unwrap();
        assert_eq!(content.text, TEXT);
        assert_eq!(content.pdh, "83367e8913dcec0bf3fc25ed5a27eacb+49");
        assert_eq!((content.file_count, content.total_size), (1, 3));
        let empty = ManifestContent::parse("").unwrap();
        assert_eq!(empty.pdh, "d41d8cd98f00b204e9800998ecf8427e+0");
    }

    #[test]
    fn names_with_a_zero_byte_are_refused() {
        let refused = |name: &str| {
            let text = format!(". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:{name}\n");
            ManifestContent::parse(&text).is_err()
        };
        assert!(refused("a\\000b"));
        assert!(!refused("a\\040000b") && !refused("a\\134000"));
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
            let signer = BlockSigner::new("key".into(), true);
            let signed = signer.sign(&text, &token);
            signer.check(&signed, &token).unwrap();
            let content = ManifestContent::parse(&signed).unwrap();
            proptest::prop_assert_eq!(&content.text, &text);
            proptest::prop_assert_eq!(content.file_count, names.len() as u64);
            proptest::prop_assert_eq!(content.pdh, ManifestContent::parse(&text).unwrap().pdh);
        }
    }

    #[test]
    fn malformed_manifests_are_refused() {
        for text in [". abc 0:0:x\n", TEXT.trim_end(), "foo\n"] {
            assert_eq!(
                ManifestContent::parse(text).unwrap_err().status().as_u16(),
                422,
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_log_appears_at_the_root_and_under_its_container_and_earlier_ones_stay() {
        let first = merge_log("", TEXT, UUID);
        let block = "acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo.txt";
        let own = format!("./log\\040for\\040container\\040{UUID} {block}\n");
        assert_eq!(first, format!(". {block}\n{own}"));
        ManifestContent::parse(&first).unwrap();

        let other = UUID.replace('0', "1");
        let second = merge_log(&first, TEXT, &other);
        assert_eq!(second.lines().count(), 3);
        assert!(second.contains(&own));
        assert_eq!(
            merge_log(&second, TEXT, &other),
            second,
            "saving again changes nothing"
        );
    }
}

//! `replace_segments` of a request that creates or updates a collection: its files get the same
//! bytes from other blocks, as a rule from one large block instead of many small ones. The source
//! of the rules is Arvados' API documentation, `collections`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::locator::{BlockHash, Locator};
use arvados_client::manifest::{Extent, Manifest, ManifestBuilder};
use serde_json::Value;

use crate::error::{ApiError, Result};

/// A part of a block: hash, first byte, number of bytes.
type Segment = (BlockHash, u64, u64);

/// Segments of the collection with what takes their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repacking {
    by_old: BTreeMap<Segment, Extent>,
}

impl Repacking {
    /// Reads the parameter; `None` without one, or if it is empty.
    pub fn parse(parameter: &Value) -> Result<Option<Repacking>> {
        let map = match parameter {
            Value::Null => return Ok(None),
            Value::Object(map) if map.is_empty() => return Ok(None),
            Value::Object(map) => map,
            _ => return Err(refused("it must be an object of segments")),
        };
        let mut by_old = BTreeMap::new();
        for (old, new) in map {
            let old_extent = extent(old)?;
            let new_extent = extent(new.as_str().unwrap_or_default())?;
            if old_extent.len != new_extent.len {
                return Err(refused(format!(
                    "{old:?} and its replacement have different lengths"
                )));
            }
            if by_old.insert(segment(&old_extent), new_extent).is_some() {
                return Err(refused(format!("{old:?} is there twice")));
            }
        }
        Ok(Some(Repacking { by_old }))
    }

    /// The blocks that take the place of others, as they were given, as a manifest.
    pub fn manifest_of_new_blocks(&self) -> String {
        let locators = self.by_old.values().map(|new| new.locator.to_string());
        let locators: BTreeSet<String> = locators.collect();
        let locators: Vec<String> = locators.into_iter().collect();
        format!(". {} 0:0:new\n", locators.join(" "))
    }

    /// The content with the segments replaced. If one is not in it, nothing is taken from the block
    /// of its replacement: another client has packed the same files differently meanwhile.
    pub fn apply(&self, manifest: &Manifest) -> Result<Manifest> {
        let tree = manifest.tree();
        let present: BTreeSet<Segment> = tree
            .files()
            .flat_map(|(_, extents)| extents.iter().map(segment))
            .collect();
        let skipped: BTreeSet<BlockHash> = self
            .by_old
            .iter()
            .filter(|(old, _)| !present.contains(*old))
            .map(|(_, new)| new.locator.hash)
            .collect();
        let mut builder = ManifestBuilder::new();
        for (path, extents) in tree.files() {
            let replaced = extents.iter().map(|extent| {
                let new = self.by_old.get(&segment(extent));
                let new = new.filter(|new| !skipped.contains(&new.locator.hash));
                new.unwrap_or(extent).clone()
            });
            builder.add_file(&path, replaced).map_err(refused)?;
        }
        for dir in tree.directories() {
            builder.add_directory(dir).map_err(refused)?;
        }
        Ok(builder.build())
    }
}

fn segment(extent: &Extent) -> Segment {
    (extent.locator.hash, extent.offset, extent.len)
}

/// Reads `LOCATOR OFFSET LENGTH`.
fn extent(text: &str) -> Result<Extent> {
    let bad = || {
        refused(format!(
            "{text:?} is no \"LOCATOR OFFSET LENGTH\" of a part of this block"
        ))
    };
    let fields: Vec<&str> = text.split(' ').collect();
    let [locator, offset, len] = fields[..] else {
        return Err(bad());
    };
    let locator = Locator::parse(locator).map_err(|_| bad())?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
    let (offset, len) = (number(offset)?, number(len)?);
    let is_inside = offset
        .checked_add(len)
        .is_some_and(|end| end <= locator.size);
    match is_inside {
        true => Ok(Extent {
            locator: Arc::new(locator),
            offset,
            len,
        }),
        false => Err(bad()),
    }
}

fn refused(why: impl std::fmt::Display) -> ApiError {
    ApiError::BadRequest(format!("replace_segments: {why}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// "fo" and "oba", once each and together in one block of five bytes.
    const OLD: &str = ". c4103f122d27677c9db144cae1394a66+2 693e9af84d3dfcc71e640e005bdc5e2e+3 \
                       0:2:one 2:3:two\n";
    const FIRST: &str = "c4103f122d27677c9db144cae1394a66+2 0 2";
    const SECOND: &str = "693e9af84d3dfcc71e640e005bdc5e2e+3+Asignature@674dd351 0 3";
    const BOTH: &str = "ca9c491ac66b2c62500882e93f3719a8+5";

    fn applied(parameter: &Value, manifest: &str) -> String {
        let repacking = Repacking::parse(parameter).unwrap().unwrap();
        let manifest = Manifest::parse(manifest).unwrap();
        repacking.apply(&manifest).unwrap().to_string()
    }

    #[test]
    fn small_blocks_become_parts_of_a_large_one() {
        let all = json!({FIRST: format!("{BOTH} 0 2"), SECOND: format!("{BOTH} 2 3")});
        assert_eq!(applied(&all, OLD), format!(". {BOTH} 0:2:one 2:3:two\n"));
        let deep = format!("./a\\040b {}", &OLD[2..]);
        let expected = format!("./a\\040b {BOTH} 0:2:one 2:3:two\n");
        assert_eq!(applied(&all, &deep), expected);
    }

    #[test]
    fn a_segment_that_is_gone_costs_all_of_its_new_block_and_no_other() {
        let gone = "acbd18db4cc2f85cedef654fccc4a4d8+3 0 3";
        let other = "8b1a9953c4611296a827abf8c47804d7+5";
        let some = json!({
            FIRST: format!("{BOTH} 0 2"), gone: format!("{BOTH} 2 3"),
            SECOND: format!("{other} 1 3"),
        });
        let expected = format!(". c4103f122d27677c9db144cae1394a66+2 {other} 0:2:one 3:3:two\n");
        assert_eq!(applied(&some, OLD), expected);
        // Part of a segment is not a segment.
        let part = json!({"693e9af84d3dfcc71e640e005bdc5e2e+3 0 2": format!("{BOTH} 2 2")});
        assert_eq!(applied(&part, OLD), OLD);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for bad in [
            json!("text"),
            json!({"a+1 0 1": FIRST}),
            json!({FIRST: "c4103f122d27677c9db144cae1394a66+2 1 2"}),
            json!({FIRST: format!("{BOTH} 0 3")}),
            json!({FIRST: format!("{BOTH} 0")}),
            json!({FIRST: format!("{BOTH} 18446744073709551615 2")}),
            json!({FIRST: 7}),
            json!({FIRST: format!("{BOTH} 0 2"), "c4103f122d27677c9db144cae1394a66+2+A0@1 0 2": FIRST}),
        ] {
            let error = Repacking::parse(&bad).unwrap_err();
            assert!(matches!(error, ApiError::BadRequest(_)), "{bad} {error:?}");
        }
        assert_eq!(Repacking::parse(&json!({})).unwrap(), None);
        assert_eq!(Repacking::parse(&Value::Null).unwrap(), None);
    }
}

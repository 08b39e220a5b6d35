//! Reads one layer of an image: a tar archive, compressed or not, whose content may be hostile.
//!
//! Input: the bytes of the layer and its digest. Output: its entries, validated one by one, and
//! their content. What cannot be unpacked as it is meant is refused, never approximated: names
//! that lead out, sparse files with a map that does not fit, records that end early. `check` finds
//! what else would be refused when the layer is unpacked, without a file system.

mod check;
mod entry;
mod entry_names;
mod pax;
mod stream;

pub use check::check;
pub use entry::{EntryKind, LayerEntry, Run};
pub use stream::LayerStream;

/// Words of a refusal that the unpacker and `check` share.
pub mod refusal {
    use std::path::Path;

    use super::entry_names::shown;

    pub const REPLACES_DIRECTORY: &str = "takes the place of a directory that is not empty";

    pub fn through(part: &Path) -> String {
        format!(
            "goes through \"{}\", which is not a directory of this layer",
            shown(part)
        )
    }

    pub fn link_target_missing(target: &Path) -> String {
        format!(
            "is a hard link to \"{}\", which is not in the layer",
            shown(target)
        )
    }

    pub fn link_to_directory(target: &Path) -> String {
        format!(
            "is a hard link to \"{}\", which cannot have any",
            shown(target)
        )
    }
}

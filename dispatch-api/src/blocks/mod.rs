//! Keep blocks: content-addressed files on disk, and how they are named in paths.

pub mod incoming;
pub mod signature;
pub mod store;
pub mod sweep;
pub mod verify;

use std::io;

/// What is there; `None` if the file is missing.
pub fn if_present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// The only storage class; all blocks have it.
pub const STORAGE_CLASS: &str = "default";

/// The block name of a path `/HASH…`.
pub fn block_name(path: &str) -> Option<&str> {
    let name = path.strip_prefix('/')?;
    let hash = name.get(..32)?;
    let is_hash = hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hash && !name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_from_other_paths() {
        let hash = "acbd18db4cc2f85cedef654fccc4a4d8";
        assert_eq!(block_name(&format!("/{hash}")), Some(hash));
        let locator = format!("{hash}+3+A0@1");
        assert_eq!(block_name(&format!("/{locator}")), Some(locator.as_str()));
        assert_eq!(block_name("/arvados/v1/containers"), None);
        assert_eq!(block_name(&format!("/{hash}/x")), None);
    }
}

//! Block hashes, locators and their permission signatures.

/// The MD5 digest that names a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash([u8; 16]);

impl BlockHash {
    /// The digest as raw bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A block's address: its hash, its size, and hints such as a permission signature.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    /// MD5 of the content.
    pub hash: BlockHash,
    /// Size of the content in bytes.
    pub size: u64,
    /// Everything after the size, without the separating `+`.
    pub hints: Vec<String>,
}

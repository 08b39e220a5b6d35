//! Reads blocks of a store that another process may use: nothing is moved or removed.

use std::fs::{self, File};
use std::io::{self, Read, Seek};

use arvados_client::keep::{BlockHash, MAX_BLOCK_SIZE};
use sha2::{Digest, Sha256};

use super::if_present;
use super::incoming::stored_sha256;
use super::store::{BlockStore, digest, hash_of, store_error};
use crate::error::Result;

/// A block, compared with its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verified<T> {
    Whole(T),
    Missing,
    /// The hash of what is there instead.
    Changed(BlockHash),
}

impl<T> Verified<T> {
    fn of(content: T, found: BlockHash, expected: BlockHash) -> Self {
        match found == expected {
            true => Self::Whole(content),
            false => Self::Changed(found),
        }
    }
}

impl BlockStore {
    /// The content of a block.
    pub fn read_verified(&self, hash: BlockHash) -> io::Result<Verified<Vec<u8>>> {
        let Some(file) = if_present(File::open(self.path(&hash.to_string())))? else {
            return Ok(Verified::Missing);
        };
        let mut data = Vec::new();
        // A damaged file may have any size.
        file.take(MAX_BLOCK_SIZE as u64 + 1)
            .read_to_end(&mut data)?;
        let found = BlockHash::of(&data);
        Ok(Verified::of(data, found, hash))
    }

    /// The size of a block whose content has been compared with its hash, and with the SHA-256 that
    /// was kept when it was stored.
    pub fn verify(&self, hash: BlockHash) -> io::Result<Verified<u64>> {
        let Some(mut file) = if_present(File::open(self.path(&hash.to_string())))? else {
            return Ok(Verified::Missing);
        };
        let (found, size) = digest(&mut file)?;
        let stored = stored_sha256(&file).filter(|_| found == hash);
        if let Some(stored) = stored {
            file.rewind()?;
            let (sha256, _) = hash_of::<Sha256>(&mut file)?;
            if sha256.finalize()[..] != stored {
                let problem = "another content with the same MD5 hash is in its place";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
        }
        Ok(Verified::of(size, found, hash))
    }

    /// Whether the SHA-256 of a block's content was kept when it was stored.
    pub fn has_sha256(&self, hash: BlockHash) -> bool {
        let file = File::open(self.path(&hash.to_string()));
        file.is_ok_and(|file| stored_sha256(&file).is_some())
    }

    /// The size of a block; its content is not read.
    pub fn look_up(&self, hash: BlockHash) -> io::Result<Verified<u64>> {
        let found = if_present(fs::metadata(self.path(&hash.to_string())))?;
        Ok(found.map_or(Verified::Missing, |found| Verified::Whole(found.len())))
    }

    /// Removes a block of a store that no server uses.
    pub fn remove(&self, hash: BlockHash) -> Result<()> {
        let path = self.path(&hash.to_string());
        fs::remove_file(&path).map_err(store_error(&path))
    }
}

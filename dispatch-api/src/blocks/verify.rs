//! Reads blocks of a store that another process may use: nothing is moved or removed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use arvados_client::keep::{BlockHash, MAX_BLOCK_SIZE};

use super::store::{BlockStore, digest, store_error};
use crate::error::Result;

/// A block, compared with its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verified<T> {
    Whole(T),
    Missing,
    /// The hash of what is there instead.
    Changed(BlockHash),
}

impl BlockStore {
    /// The content of a block.
    pub fn read_verified(&self, hash: BlockHash) -> io::Result<Verified<Vec<u8>>> {
        let Some(file) = open(&self.path(&hash.to_string()))? else {
            return Ok(Verified::Missing);
        };
        let mut data = Vec::new();
        // A damaged file may have any size.
        file.take(MAX_BLOCK_SIZE as u64 + 1)
            .read_to_end(&mut data)?;
        let found = BlockHash::of(&data);
        Ok(match found == hash {
            true => Verified::Whole(data),
            false => Verified::Changed(found),
        })
    }

    /// The size of a block whose content has been compared with its hash.
    pub fn verify(&self, hash: BlockHash) -> io::Result<Verified<u64>> {
        let Some(mut file) = open(&self.path(&hash.to_string()))? else {
            return Ok(Verified::Missing);
        };
        let (found, size) = digest(&mut file)?;
        Ok(match found == hash {
            true => Verified::Whole(size),
            false => Verified::Changed(found),
        })
    }

    /// The size of a block; its content is not read.
    pub fn look_up(&self, hash: BlockHash) -> io::Result<Verified<u64>> {
        match fs::metadata(self.path(&hash.to_string())) {
            Ok(found) => Ok(Verified::Whole(found.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Verified::Missing),
            Err(error) => Err(error),
        }
    }

    /// Removes a block of a store that no server uses.
    pub fn remove(&self, hash: BlockHash) -> Result<()> {
        let path = self.path(&hash.to_string());
        fs::remove_file(&path).map_err(|source| store_error(&path, source))
    }
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

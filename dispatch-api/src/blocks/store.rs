//! Blocks on disk as `blocks/abc/abc…`, written atomically and verified at every read.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use arvados_client::keep::BlockHash;
use fail_points::fail_point;
use md5::{Digest, Md5};
use parking_lot::{Mutex, RwLock};
use tracing::{error, warn};

use super::if_present;
use super::incoming::IncomingBlock;
use crate::error::{ApiError, Result};

const READ_BUFFER_BYTES: usize = 1 << 20;

pub struct BlockStore {
    root: PathBuf,
    corrupt_dir: PathBuf,
    incoming_dir: PathBuf,
    /// Held exclusively while blocks are removed; see `sweep.rs` for this and the next two.
    pub(super) removal: RwLock<()>,
    pub(super) sweep: Mutex<()>,
    pub(super) named: Mutex<Option<HashSet<BlockHash>>>,
}

impl BlockStore {
    /// The store of a directory that another process may use: only for reading.
    pub fn for_reading(root: PathBuf) -> Self {
        BlockStore {
            corrupt_dir: root.join("corrupt"),
            incoming_dir: root.join("incoming"),
            root,
            removal: RwLock::default(),
            sweep: Mutex::default(),
            named: Mutex::default(),
        }
    }

    /// The store of this process alone.
    pub fn open(root: PathBuf) -> io::Result<Self> {
        let store = Self::for_reading(root);
        fs::create_dir_all(&store.corrupt_dir)?;
        fs::create_dir_all(&store.incoming_dir)?;
        // Partial files of a killed server.
        for left in fs::read_dir(&store.incoming_dir)? {
            fs::remove_file(left?.path())?;
        }
        Ok(store)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, hash: &str) -> PathBuf {
        self.root.join(&hash[..3]).join(hash)
    }

    /// Stores a block. `hash` must be the hash of `data`.
    pub fn put(&self, hash: BlockHash, data: &[u8]) -> Result<()> {
        if self.renew_whole(hash, data.len() as u64)? {
            return Ok(());
        }
        let mut block = self.receive()?;
        self.append(&mut block, data)?;
        self.publish(block, hash)
    }

    /// Begins a block whose content is not known yet.
    pub fn receive(&self) -> Result<IncomingBlock> {
        IncomingBlock::create(&self.incoming_dir).map_err(store_error(&self.incoming_dir))
    }

    pub fn append(&self, block: &mut IncomingBlock, data: &[u8]) -> Result<()> {
        let appended = block.append(data);
        appended.map_err(store_error(&self.incoming_dir))
    }

    /// Stores a block that has been received. `hash` must be the hash of its content.
    pub fn store(&self, block: IncomingBlock, hash: BlockHash) -> Result<()> {
        match self.renew_whole(hash, block.size())? {
            true => Ok(()),
            false => self.publish(block, hash),
        }
    }

    /// Makes a block as new as one just stored. False if it is not stored or damaged.
    fn renew_whole(&self, hash: BlockHash, size: u64) -> Result<bool> {
        let name = hash.to_string();
        let path = self.path(&name);
        Ok(self.verified_size(&name, &path)? == Some(size) && self.renew(&path)?)
    }

    fn publish(&self, block: IncomingBlock, hash: BlockHash) -> Result<()> {
        let path = self.path(&hash.to_string());
        self.move_in(block, &path).map_err(store_error(&path))
    }

    /// Gives a block the present time. False if it has been removed meanwhile.
    fn renew(&self, path: &Path) -> Result<bool> {
        let _hold = self.hold();
        let renewed = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
        let renewed = if_present(renewed).map_err(store_error(path))?;
        Ok(renewed.is_some())
    }

    fn move_in(&self, block: IncomingBlock, path: &Path) -> io::Result<()> {
        block.sync()?;
        fail_point("api.block.before-rename");
        let shard = path.parent().unwrap_or(&self.root);
        if !shard.is_dir() {
            fs::create_dir_all(shard)?;
            File::open(&self.root)?.sync_all()?;
        }
        {
            let _hold = self.hold();
            block.move_to(path)?;
        }
        fail_point("api.block.after-rename");
        // The name is durable only after the directory is synced too.
        File::open(shard)?.sync_all()
    }

    /// The size of a block, `None` if missing.
    pub fn size(&self, hash: BlockHash) -> Result<Option<u64>> {
        let path = self.path(&hash.to_string());
        let found = if_present(fs::metadata(&path)).map_err(store_error(&path))?;
        Ok(found.map(|found| found.len()))
    }

    /// Opens a block after its content has been verified against its hash.
    pub fn open_checked(&self, hash: BlockHash) -> Result<Option<(File, u64)>> {
        let name = hash.to_string();
        let path = self.path(&name);
        match self.verified_size(&name, &path)? {
            None if path.exists() => Err(ApiError::CorruptBlock(name)),
            None => Ok(None),
            Some(size) => {
                let file = File::open(&path).map_err(store_error(&path))?;
                Ok(Some((file, size)))
            }
        }
    }

    /// The size of a block after verification; `None` if missing or damaged. A damaged block is
    /// moved to the corrupt directory.
    fn verified_size(&self, name: &str, path: &Path) -> Result<Option<u64>> {
        let Some(mut file) = if_present(File::open(path)).map_err(store_error(path))? else {
            return Ok(None);
        };
        let (found, size) = digest(&mut file).map_err(store_error(path))?;
        if found.to_string() == name {
            return Ok(Some(size));
        }
        let aside = self
            .corrupt_dir
            .join(format!("{name}.{:08x}", fastrand::u32(..)));
        error!(block = name, %found, moved_to = %aside.display(),
               "a block on disk does not match its hash: it was damaged after it was stored");
        if let Err(failed) = fs::rename(path, &aside) {
            warn!(block = name, error = %failed, "cannot move the damaged block to the corrupt directory");
        }
        Ok(None)
    }
}

pub(super) fn digest(file: &mut File) -> io::Result<(BlockHash, u64)> {
    let mut hasher = Md5::new();
    let mut piece = vec![0u8; READ_BUFFER_BYTES];
    let mut size = 0;
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok((BlockHash::from_digest(hasher), size));
        }
        hasher.update(&piece[..count]);
        size += count as u64;
    }
}

/// For `map_err`.
pub(super) fn store_error(path: &Path) -> impl FnOnce(io::Error) -> ApiError {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull => ApiError::DiskFull,
        _ => ApiError::Blocks {
            path: path.display().to_string(),
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, BlockStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = BlockStore::open(directory.path().join("blocks")).unwrap();
        (directory, store)
    }

    #[test]
    fn what_is_put_can_be_read() {
        let (_directory, store) = store();
        let hash = BlockHash::of(b"foo");
        store.put(hash, b"foo").unwrap();
        store.put(hash, b"foo").unwrap();
        let (mut file, size) = store.open_checked(hash).unwrap().unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!((content.as_slice(), size), (&b"foo"[..], 3));
        assert!(store.open_checked(BlockHash::of(b"bar")).unwrap().is_none());
    }

    #[test]
    fn a_damaged_block_is_moved_aside_and_can_be_stored_again() {
        let (_directory, store) = store();
        let hash = BlockHash::of(b"foo");
        store.put(hash, b"foo").unwrap();
        fs::write(store.path(&hash.to_string()), b"fox").unwrap();
        assert!(store.open_checked(hash).unwrap().is_none());
        assert_eq!(fs::read_dir(&store.corrupt_dir).unwrap().count(), 1);
        store.put(hash, b"foo").unwrap();
        assert!(store.open_checked(hash).unwrap().is_some());
    }

    #[test]
    fn a_block_that_is_received_in_pieces_is_stored_or_leaves_nothing() {
        let (_directory, store) = store();
        let hash = BlockHash::of(b"foobar");
        let received = || {
            let mut block = store.receive().unwrap();
            for piece in [b"foo", b"bar"] {
                store.append(&mut block, piece).unwrap();
            }
            block
        };
        let waiting = || fs::read_dir(&store.incoming_dir).unwrap().count();
        drop(received());
        assert_eq!((waiting(), store.size(hash).unwrap()), (0, None));
        // The second time, it is stored already.
        for _ in 0..2 {
            store.store(received(), hash).unwrap();
            assert_eq!((waiting(), store.size(hash).unwrap()), (0, Some(6)));
        }
        assert!(store.open_checked(hash).unwrap().is_some());
        fs::write(store.path(&hash.to_string()), b"fooxxx").unwrap();
        store.store(received(), hash).unwrap();
        assert!(store.open_checked(hash).unwrap().is_some());
    }

    #[test]
    fn half_written_files_are_gone_after_a_restart() {
        let (directory, store) = store();
        fs::write(store.incoming_dir.join("half"), b"x").unwrap();
        let again = BlockStore::open(directory.path().join("blocks")).unwrap();
        assert_eq!(fs::read_dir(&again.incoming_dir).unwrap().count(), 0);
    }
}

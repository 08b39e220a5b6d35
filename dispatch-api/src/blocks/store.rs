//! Blocks on disk as `blocks/abc/abc…`, written atomically and verified at every read.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek};
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
        if self.renew_whole(hash, data)? {
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
        let received = block.content().map_err(store_error(&self.incoming_dir))?;
        match self.renew_whole(hash, received)? {
            true => Ok(()),
            false => self.publish(block, hash),
        }
    }

    /// Makes a block as new as one just stored. False if it is not stored or damaged. Fails if the
    /// stored block has another content with the same hash: such are made on purpose.
    fn renew_whole(&self, hash: BlockHash, content: impl Read) -> Result<bool> {
        let Some((stored, _)) = self.open_whole(hash)? else {
            return Ok(false);
        };
        let path = self.path(&hash.to_string());
        match is_equal(stored, content).map_err(store_error(&path))? {
            true => self.renew(&path),
            false => Err(ApiError::invalid(format!(
                "Collision: another block with the MD5 hash {hash} is stored; this one cannot be"
            ))),
        }
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
        match self.open_whole(hash)? {
            None if self.path(&name).exists() => Err(ApiError::CorruptBlock(name)),
            found => Ok(found),
        }
    }

    /// Opens a block after its content has been verified; `None` if missing or damaged. A damaged
    /// block is moved to the corrupt directory.
    fn open_whole(&self, hash: BlockHash) -> Result<Option<(File, u64)>> {
        let name = hash.to_string();
        let path = &self.path(&name);
        let Some(mut file) = if_present(File::open(path)).map_err(store_error(path))? else {
            return Ok(None);
        };
        let (found, size) = digest(&mut file).map_err(store_error(path))?;
        if found == hash {
            file.rewind().map_err(store_error(path))?;
            return Ok(Some((file, size)));
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
    let (hasher, size) = hash_of::<Md5>(file)?;
    Ok((BlockHash::from_digest(hasher), size))
}

/// A hash of a file, and its size.
pub(super) fn hash_of<D: Digest>(file: &mut File) -> io::Result<(D, u64)> {
    let mut hasher = D::new();
    let mut piece = vec![0u8; READ_BUFFER_BYTES];
    let mut size = 0;
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok((hasher, size));
        }
        hasher.update(&piece[..count]);
        size += count as u64;
    }
}

fn is_equal(one: impl Read, other: impl Read) -> io::Result<bool> {
    let mut other = BufReader::with_capacity(READ_BUFFER_BYTES, other);
    let mut one = BufReader::with_capacity(READ_BUFFER_BYTES, one);
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let count = left.len().min(right.len());
        if left[..count] != right[..count] {
            return Ok(false);
        }
        if count == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        one.consume(count);
        other.consume(count);
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
    use super::super::verify::Verified;
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

    /// Two blocks that were made to have one MD5 hash: X. Wang and H. Yu, "How to Break MD5 and
    /// Other Hash Functions", 2005.
    const COLLISION: [&str; 2] = [
        "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89\
         55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b\
         d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0\
         e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70",
        "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f89\
         55ad340609f4b30283e4888325f1415a085125e8f7cdc99fd91dbd7280373c5b\
         d8823e3156348f5bae6dacd436c919c6dd53e23487da03fd02396306d248cda0\
         e99f33420f577ee8ce54b67080280d1ec69821bcb6a8839396f965ab6ff72a70",
    ];

    #[test]
    fn a_block_is_not_taken_for_another_with_the_same_hash() {
        let (_directory, store) = store();
        let blocks = COLLISION.map(|text| data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap());
        let hash = BlockHash::of(&blocks[0]);
        assert_eq!(hash, BlockHash::of(&blocks[1]));
        store.put(hash, &blocks[0]).unwrap();
        store.put(hash, &blocks[0]).unwrap();
        let refused = store.put(hash, &blocks[1]).unwrap_err();
        assert!(refused.to_string().starts_with("Collision: "), "{refused}");
        let mut received = store.receive().unwrap();
        store.append(&mut received, &blocks[1]).unwrap();
        store.store(received, hash).unwrap_err();
        let (mut file, _) = store.open_checked(hash).unwrap().unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content, blocks[0]);
        drop(file);
        assert!(matches!(store.verify(hash), Ok(Verified::Whole(128))));
        // Somebody with access to the disk.
        fs::write(store.path(&hash.to_string()), &blocks[1]).unwrap();
        let changed = store.verify(hash).unwrap_err().to_string();
        assert!(changed.contains("same MD5 hash"), "{changed}");
    }

    #[test]
    fn half_written_files_are_gone_after_a_restart() {
        let (directory, store) = store();
        fs::write(store.incoming_dir.join("half"), b"x").unwrap();
        let again = BlockStore::open(directory.path().join("blocks")).unwrap();
        assert_eq!(fs::read_dir(&again.incoming_dir).unwrap().count(), 0);
    }
}

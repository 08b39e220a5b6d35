//! Files over blocks: files are written and read back, in bounded memory, and small files share
//! blocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arvados_client::keep::{
    BlockLru, BlockSource, BlockStore, CollectionWriter, FileReader, KeepError, Locator,
    MemoryStore,
};
use arvados_client::manifest::{FileEntry, Manifest};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

const BLOCK: usize = 64;

fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| (n * 7 + seed * 13 + n / 256) as u8)
        .collect()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

async fn store_files(
    store: &Arc<MemoryStore>,
    files: &[(String, Vec<u8>)],
    step: usize,
) -> Manifest {
    let mut writer = CollectionWriter::with_limits(store.clone(), BLOCK, 2);
    for (path, data) in files {
        writer.start_file(path).unwrap();
        for part in data.chunks(step) {
            writer.write(part).await.unwrap();
        }
        writer.finish_file();
    }
    writer.finish().await.unwrap()
}

async fn read_back<S: BlockSource + Clone + 'static>(
    store: &S,
    manifest: &Manifest,
) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for FileEntry { path, extents } in manifest.files() {
        let reader = FileReader::new(store.clone(), &extents);
        let size = reader.remaining();
        let data = reader.read_all(usize::MAX).await.unwrap();
        assert_eq!(size, data.len() as u64);
        files.insert(path, data);
    }
    files
}

/// Sizes around the borders of blocks.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..3 * BLOCK,
        (0usize..4, 0usize..3)
            .prop_map(|(blocks, around)| (blocks * BLOCK + around).saturating_sub(1)),
    ]
}

proptest! {
    #[test]
    fn what_is_written_reads_back(sizes in vec(size(), 0..12), step in 1usize..200) {
        let files = sizes.iter().enumerate().map(|(n, &len)| (format!("d{}/f{n}", n % 3), content(n, len)));
        let files: Vec<(String, Vec<u8>)> = files.collect();
        run(async {
            let store = Arc::new(MemoryStore::new());
            let manifest = store_files(&store, &files, step).await;
            let again = Manifest::parse(&manifest.to_string()).unwrap();
            assert_eq!(again, manifest);
            assert_eq!(again.tree().to_manifest(), manifest);
            let expected: BTreeMap<_, _> = files.iter().cloned().collect();
            assert_eq!(read_back(&store, &manifest).await, expected);
        });
    }

    #[test]
    fn every_range_of_a_file_reads_as_that_part_of_it(len in size(), a in any::<usize>(), b in any::<usize>()) {
        let (a, b) = (a % (len + 1), b % (len + 1));
        let (from, to) = (a.min(b), a.max(b));
        let data = content(1, len);
        run(async {
            let store = Arc::new(MemoryStore::new());
            let files = [("small".to_owned(), content(2, 10)), ("f".to_owned(), data.clone())];
            let manifest = store_files(&store, &files, 50).await;
            let file = manifest.files().find(|f| f.path == "f").unwrap();
            let reader = FileReader::range(store, &file.extents, from as u64..to as u64).unwrap();
            assert_eq!(reader.remaining(), (to - from) as u64);
            assert_eq!(reader.read_all(1000).await.unwrap(), &data[from..to]);
        });
    }
}

#[tokio::test]
async fn small_files_share_a_block_and_a_large_one_begins_its_own() {
    let store = Arc::new(MemoryStore::new());
    let large = content(9, 2 * BLOCK + 5);
    let files = [
        ("a".to_owned(), content(1, 10)),
        ("b".to_owned(), content(2, 10)),
        ("large".to_owned(), large.clone()),
        ("z".to_owned(), content(3, 10)),
    ];
    let manifest = store_files(&store, &files, 7).await;
    let sizes: Vec<u64> = manifest.locators().map(|l| l.size).collect();
    assert_eq!(sizes, [20, 64, 64, 15]);
    // The same large file alone has the same full blocks.
    let alone = store_files(&store, &[("x".to_owned(), large)], 100).await;
    assert_eq!(
        alone.locators().take(2).collect::<Vec<_>>(),
        manifest.locators().skip(1).take(2).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_file_that_fills_a_block_exactly_stays_with_its_neighbours() {
    let store = Arc::new(MemoryStore::new());
    let files = [
        ("a".to_owned(), content(1, 30)),
        ("b".to_owned(), content(2, 34)),
        ("c".to_owned(), content(3, 1)),
    ];
    let manifest = store_files(&store, &files, 64).await;
    assert_eq!(
        manifest.locators().map(|l| l.size).collect::<Vec<_>>(),
        [64, 1]
    );
}

#[tokio::test]
async fn empty_files_and_directories_need_no_block() {
    let store = Arc::new(MemoryStore::new());
    let mut writer = CollectionWriter::new(store.clone());
    writer.start_file("empty").unwrap();
    writer.add_dir_placeholder("void/inner").unwrap();
    let manifest = writer.finish().await.unwrap();
    let empty = "d41d8cd98f00b204e9800998ecf8427e+0";
    assert_eq!(
        manifest.to_string(),
        format!(". {empty} 0:0:empty\n./void/inner {empty} 0:0:.keep\n")
    );
    assert!(store.is_empty());
    assert_eq!(read_back(&store, &manifest).await["empty"], b"");
}

#[tokio::test]
async fn a_snapshot_is_complete_and_writing_goes_on() {
    let store = Arc::new(MemoryStore::new());
    let mut writer = CollectionWriter::with_limits(store.clone(), BLOCK, 2);
    writer.start_file("log").unwrap();
    writer.write(b"first ").await.unwrap();
    let early = writer.snapshot().await.unwrap();
    writer.write(b"second ").await.unwrap();
    writer.start_file("other").unwrap();
    writer.write(&content(4, 100)).await.unwrap();
    writer.start_file("log").unwrap();
    writer.write(b"third").await.unwrap();
    let late = writer.finish().await.unwrap();
    assert_eq!(read_back(&store, &early).await["log"], b"first ");
    let files = read_back(&store, &late).await;
    assert_eq!(files["log"], b"first second third");
    assert_eq!(files["other"], content(4, 100));
}

#[tokio::test]
async fn a_whole_reader_can_be_stored() {
    let store = Arc::new(MemoryStore::new());
    let data = content(5, 300_000);
    let mut writer = CollectionWriter::with_limits(store.clone(), 100_000, 2);
    assert_eq!(
        writer.put_reader("dir/x", &data[..]).await.unwrap(),
        300_000
    );
    let manifest = writer.finish().await.unwrap();
    assert_eq!(read_back(&store, &manifest).await["dir/x"], data);
}

#[tokio::test]
async fn mistakes_are_refused_at_once() {
    let store = Arc::new(MemoryStore::new());
    let mut writer = CollectionWriter::new(store.clone());
    assert!(matches!(
        writer.write(b"x").await,
        Err(KeepError::NoOpenFile)
    ));
    writer.start_file("a").unwrap();
    for bad in ["a/b", "", "../a", "b/"] {
        assert!(
            matches!(writer.start_file(bad), Err(KeepError::Manifest(_))),
            "{bad:?}"
        );
    }
    writer.write(b"12345").await.unwrap();
    let manifest = writer.finish().await.unwrap();
    let file = manifest.files().next().unwrap();
    let beyond = FileReader::range(store.clone(), &file.extents, 2..6).unwrap_err();
    assert_eq!(
        beyond.to_string(),
        "bytes 2 to 6 were requested, but the file has only 5"
    );
    let large = FileReader::new(store, &file.extents)
        .read_all(4)
        .await
        .unwrap_err();
    assert_eq!(
        large.to_string(),
        "the file has 5 bytes, and no more than 4 can be read at once"
    );
}

/// A store that counts its calls and the blocks in use, and fails on request.
#[derive(Debug, Default)]
struct Counting {
    blocks: MemoryStore,
    gets: AtomicUsize,
    live: Arc<AtomicUsize>,
    most: AtomicUsize,
    failures: AtomicUsize,
}

struct Live(Bytes, Arc<AtomicUsize>);

impl AsRef<[u8]> for Live {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counting {
    fn fail(&self) -> Result<(), KeepError> {
        let left = self.failures.load(Ordering::SeqCst);
        if left > 0 {
            self.failures.store(left - 1, Ordering::SeqCst);
            return Err(KeepError::NoService);
        }
        Ok(())
    }
}

impl BlockSource for Counting {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        self.fail()?;
        let live = self.live.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(live, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let data = self.blocks.get(locator).await?;
        Ok(Bytes::from_owner(Live(data, self.live.clone())))
    }
}

impl BlockStore for Counting {
    async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
        self.fail()?;
        self.blocks.put(data).await
    }
}

async fn counting(files: &[(&str, usize)]) -> (Arc<Counting>, Manifest) {
    let store = Arc::new(Counting::default());
    let mut writer = CollectionWriter::with_limits(store.clone(), BLOCK, 2);
    for (n, (path, len)) in files.iter().enumerate() {
        writer.start_file(path).unwrap();
        writer.write(&content(n, *len)).await.unwrap();
    }
    let manifest = writer.finish().await.unwrap();
    (store, manifest)
}

#[tokio::test]
async fn a_reader_holds_the_block_in_use_and_the_next() {
    let (store, manifest) = counting(&[("f", 20 * BLOCK)]).await;
    let file = manifest.files().next().unwrap();
    let mut reader = FileReader::new(store.clone(), &file.extents);
    assert_eq!(store.gets.load(Ordering::SeqCst), 0);
    let mut size = 0;
    while let Some(chunk) = reader.next_chunk().await.unwrap() {
        size += chunk.len();
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let ahead = store.gets.load(Ordering::SeqCst) * BLOCK - size;
        assert!(ahead <= BLOCK, "{ahead} bytes ahead");
    }
    assert_eq!(size, 20 * BLOCK);
    assert_eq!(store.gets.load(Ordering::SeqCst), 20);
    assert_eq!(store.most.load(Ordering::SeqCst), 2);
    assert_eq!(store.live.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_failed_read_can_be_repeated_without_losing_a_byte() {
    let (store, manifest) = counting(&[("f", 3 * BLOCK)]).await;
    let file = manifest.files().next().unwrap();
    let mut reader = FileReader::new(store.clone(), &file.extents);
    let mut data = Vec::new();
    let mut failed = 0;
    store.failures.store(2, Ordering::SeqCst);
    loop {
        match reader.next_chunk().await {
            Ok(Some(chunk)) => data.extend_from_slice(&chunk),
            Ok(None) => break,
            Err(_) => failed += 1,
        }
        if data.len() == BLOCK && failed == 2 {
            store.failures.store(1, Ordering::SeqCst);
        }
    }
    assert_eq!(data, content(0, 3 * BLOCK));
    assert_eq!(failed, 3);
}

#[tokio::test]
async fn many_small_files_of_one_block_fetch_it_once() {
    let (store, manifest) = counting(&[("a", 9), ("b", 9), ("c", 9), ("large", 3 * BLOCK)]).await;
    let recent = Arc::new(BlockLru::new(store.clone(), 1));
    let files = read_back(&recent, &manifest).await;
    assert_eq!(files["b"], content(1, 9));
    assert_eq!(files["large"], content(3, 3 * BLOCK));
    assert_eq!(store.gets.load(Ordering::SeqCst), 4);
    drop(recent);
    assert_eq!(store.live.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_block_wanted_by_many_at_once_is_fetched_once() {
    let (store, manifest) = counting(&[("a", 9)]).await;
    let recent = BlockLru::new(store.clone(), 1);
    let locator = manifest.locators().next().unwrap();
    store.failures.store(1, Ordering::SeqCst);
    let (a, b, c) = tokio::join!(
        recent.get(locator),
        recent.get(locator),
        recent.get(locator)
    );
    assert_eq!(
        [a, b, c].iter().filter(|r| r.is_ok()).count(),
        2,
        "one sees the failure, the others try again"
    );
    assert_eq!(store.gets.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_block_that_cannot_be_stored_spoils_the_collection() {
    let store = Arc::new(Counting::default());
    let mut writer = CollectionWriter::with_limits(store.clone(), BLOCK, 1);
    store.failures.store(1, Ordering::SeqCst);
    writer.start_file("f").unwrap();
    let mut first = None;
    for _ in 0..10 {
        if let Err(error) = writer.write(&content(0, BLOCK)).await {
            first = Some(error);
            break;
        }
    }
    assert!(matches!(first, Some(KeepError::NoService)), "{first:?}");
    assert!(matches!(
        writer.write(b"x").await,
        Err(KeepError::WriterFailed)
    ));
    assert!(matches!(
        writer.finish().await,
        Err(KeepError::WriterFailed)
    ));
}

/// Parts of local files are blocks of their own between files that share blocks, and everything is
/// read back unchanged.
#[tokio::test]
async fn pieces_of_files_and_small_files_make_one_collection() {
    use arvados_client::keep::FilePart;
    use std::io::Write;

    let content: Vec<u8> = (0..2500u32).map(|n| (n % 251) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content).unwrap();
    let file = Arc::new(file);
    let part = |offset: u64, len: usize| FilePart::new(file.clone(), "large".into(), offset, len);
    let store = Arc::new(MemoryStore::new());
    let mut writer = CollectionWriter::with_limits(store.clone(), 1000, 2);
    assert!(writer.write_part(part(0, 1)).await.is_err(), "no open file");
    writer.start_file("a").unwrap();
    writer.write(b"aaa").await.unwrap();
    writer.start_file("large").unwrap();
    writer.write_part(part(0, 1000)).await.unwrap();
    writer.write_part(part(1000, 1000)).await.unwrap();
    writer.write(&content[2000..]).await.unwrap();
    writer.start_file("b").unwrap();
    writer.write(&[7; 990]).await.unwrap();
    writer.start_file("parts-only").unwrap();
    writer.write_part(part(5, 10)).await.unwrap();
    writer.finish_file();
    let manifest = writer.finish().await.unwrap();
    let expected: [(&str, &[u8]); 4] = [
        ("a", b"aaa"),
        ("b", &[7; 990]),
        ("large", &content),
        ("parts-only", &content[5..15]),
    ];
    for (path, bytes) in expected {
        let file = manifest.files().find(|file| file.path == path).unwrap();
        let reader = FileReader::new(store.clone(), &file.extents);
        assert_eq!(reader.read_all(1 << 20).await.unwrap(), bytes, "{path}");
    }
    // a + the tail of large, two blocks of large, b, and the small part.
    assert_eq!(store.len(), 5);

    let mut writer = CollectionWriter::with_limits(store, 1000, 2);
    writer.start_file("short").unwrap();
    writer.write_part(part(2000, 1000)).await.unwrap();
    let error = writer.finish().await.unwrap_err();
    assert!(error.to_string().contains("large"), "{error}");
}

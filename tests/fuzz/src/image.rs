//! Image archives: no bytes make the loader panic, write beside its cache, or leave a half-made
//! layer in it.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use node_cache::image::ImageStore;

/// Checks the rules with this input.
pub fn check(bytes: &[u8]) {
    // Uses memory, because every accepted layer is flushed to the disk.
    let dir = tempfile::tempdir_in("/dev/shm").expect("room in /dev/shm");
    let cache = dir.path().join("cache");
    let store = ImageStore::open(&cache).expect("a cache");
    let _ = store.load(&mut Cursor::new(bytes), "image.tar", None);
    assert_eq!(names(dir.path()), ["cache"]);
    let parts = ["blocks", "images", "layers", "refused", "servers", "work"];
    assert_eq!(names(&cache), parts);
    for name in names(&cache.join("layers")) {
        assert!(
            name.len() == 64 || name.ends_with(".lock"),
            "{name} is left"
        );
    }
    dir.close().expect("whatever was unpacked can be removed");
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("the directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

//! Large outputs and many files through the real program: what they cost in memory, and how they
//! are stored.

use crate::large_lab::{Captured, MANY, MIB, can_run, run, sparse};

/// `LARGE_MIB=10240` for ten GiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_file_is_never_in_memory() {
    if !can_run() {
        return;
    }
    let size = std::env::var("LARGE_MIB").map_or(192, |mib| mib.parse().unwrap());
    let Captured {
        manifest, grown, ..
    } = run(&sparse(size)).await;
    assert_eq!(manifest.total_size(), size * MIB + 4);
    assert!(grown <= 64 * MIB, "{} MiB more", grown / MIB);
    eprintln!("{size} MiB took {} MiB of memory", grown / MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_small_files_share_a_block() {
    if !can_run() {
        return;
    }
    let Captured {
        manifest, grown, ..
    } = run(MANY).await;
    assert_eq!(manifest.files().count(), 10_000);
    let blocks: std::collections::BTreeSet<String> = manifest
        .locators()
        .map(|locator| locator.stripped().to_string())
        .collect();
    assert_eq!(blocks.len(), 1, "{blocks:?}");
    assert!(grown <= 96 * MIB, "{} MiB more", grown / MIB);
    eprintln!("10,000 files took {} MiB of memory", grown / MIB);
}

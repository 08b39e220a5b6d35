//! Copies blocks that another cluster stores, before the output refers to them.

use std::collections::HashMap;

use arvados_client::keep::{BlockHash, BlockStore, Locator};
use arvados_client::manifest::Manifest;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::OutputError;

/// Maximum number of blocks copied at the same time; each needs up to 64 MiB of memory.
const MAX_CONCURRENT_COPIES: usize = 2;

fn is_remote(locator: &Locator) -> bool {
    locator.hints.iter().any(|hint| hint.starts_with('R'))
}

/// Returns the manifest with every block of another cluster copied to this one and signed by it.
pub async fn copy_remote_blocks<S: BlockStore>(
    manifest: Manifest,
    keep: &S,
) -> Result<Manifest, OutputError> {
    let remote: HashMap<(BlockHash, u64), Locator> = manifest
        .locators()
        .filter(|locator| is_remote(locator))
        .map(|locator| ((locator.hash, locator.size), Locator::clone(locator)))
        .collect();
    if remote.is_empty() {
        return Ok(manifest);
    }
    let copied: HashMap<(BlockHash, u64), Locator> = stream::iter(remote)
        .map(|(key, locator)| async move {
            let data = keep.get(&locator).await?;
            Ok::<_, OutputError>((key, keep.put(data).await?))
        })
        .buffer_unordered(MAX_CONCURRENT_COPIES)
        .try_collect()
        .await?;
    Ok(manifest.map_locators(|locator| {
        let copy = copied.get(&(locator.hash, locator.size));
        copy.unwrap_or(locator).clone()
    }))
}

#[cfg(test)]
mod tests {
    use arvados_client::keep::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn only_blocks_of_other_clusters_are_copied() {
        let store = MemoryStore::new();
        let here = store.put("here".into()).await.unwrap();
        let there = store.put("there".into()).await.unwrap();
        let text = format!(". {here}+Aown@1 {there}+Rzzzzz-x@2 0:9:f\n");
        let manifest = Manifest::parse(&text).unwrap();
        let copied = copy_remote_blocks(manifest, &store).await.unwrap();
        assert_eq!(
            copied.to_string(),
            format!(". {here}+Aown@1 {there} 0:9:f\n")
        );
    }

    #[tokio::test]
    async fn a_block_nobody_has_is_an_error() {
        let lost = Locator::of(b"lost");
        let manifest = Manifest::parse(&format!(". {lost}+Rzzzzz-x@2 0:4:f\n")).unwrap();
        let error = copy_remote_blocks(manifest, &MemoryStore::new())
            .await
            .unwrap_err();
        assert!(!error.is_user_error() && error.to_string().contains("does not exist"));
    }
}

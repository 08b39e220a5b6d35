//! Fetches the file trees of mounted collections, each once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arvados_client::Client;
use arvados_client::ids::Pdh;
use arvados_client::manifest::{FileTree, Manifest, portable_data_hash};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::MountError;

/// Maximum number of concurrent lookups.
const MAX_CONCURRENT_LOOKUPS: usize = 8;
const EMPTY_PDH: &str = "d41d8cd98f00b204e9800998ecf8427e+0";

/// File trees by collection, as the mount names it (uuid or portable data hash).
pub type CollectionTrees = HashMap<String, CollectionContent>;

/// A collection at the time of the lookup.
#[derive(Debug, Clone)]
pub struct CollectionContent {
    /// Portable data hash, also if it was requested by uuid.
    pub hash: Pdh,
    pub tree: Arc<FileTree>,
}

/// Fetches the collections in `wanted`; each comes with a mount that needs it, for error messages.
pub async fn fetch(
    client: &Client,
    wanted: BTreeMap<String, String>,
) -> Result<CollectionTrees, MountError> {
    stream::iter(wanted)
        .map(|(collection, target)| async move {
            let content = fetch_one(client, &collection, target).await?;
            Ok((collection, content))
        })
        .buffer_unordered(MAX_CONCURRENT_LOOKUPS)
        .try_collect()
        .await
}

async fn fetch_one(
    client: &Client,
    collection: &str,
    target: String,
) -> Result<CollectionContent, MountError> {
    if collection == EMPTY_PDH {
        // The empty collection can be mounted without being saved.
        return Ok(CollectionContent {
            hash: portable_data_hash(""),
            tree: Arc::default(),
        });
    }
    let collection = collection.to_owned();
    let record = match client.collection(&collection).await {
        Ok(record) => record,
        Err(error) if error.is_not_found() => {
            return Err(MountError::NoCollection { target, collection });
        }
        Err(source) => {
            return Err(MountError::LookUp {
                target,
                collection,
                source: Box::new(source),
            });
        }
    };
    let text = record.manifest_text;
    let hash = portable_data_hash(&text);
    // The content must match a requested portable data hash.
    if Pdh::parse(&collection).is_ok_and(|asked| asked != hash) {
        return Err(MountError::WrongCollection { target, collection });
    }
    match Manifest::parse(&text) {
        Ok(manifest) => Ok(CollectionContent {
            hash,
            tree: Arc::new(manifest.tree()),
        }),
        Err(source) => Err(MountError::Content {
            target,
            collection,
            source: Box::new(source),
        }),
    }
}

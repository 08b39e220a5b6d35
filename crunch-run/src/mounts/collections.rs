//! The contents of the collections that are mounted, each asked for once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arvados_client::Client;
use arvados_client::ids::Pdh;
use arvados_client::manifest::{FileTree, Manifest, portable_data_hash};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::MountError;

/// Look-ups on their way at once.
const AT_ONCE: usize = 8;
const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e+0";

/// Files by collection, as uuid or portable data hash names it.
pub type Trees = HashMap<String, Arc<FileTree>>;

/// Fetches what `wanted` names; each name comes with a mount that needs it, for messages.
pub async fn fetch(client: &Client, wanted: BTreeMap<String, String>) -> Result<Trees, MountError> {
    stream::iter(wanted)
        .map(|(collection, target)| async move {
            let tree = fetch_one(client, &collection, target).await?;
            Ok((collection, Arc::new(tree)))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn fetch_one(
    client: &Client,
    collection: &str,
    target: String,
) -> Result<FileTree, MountError> {
    if collection == EMPTY {
        return Ok(FileTree::default());
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
    // What was asked for by content is checked by content.
    let text = record.manifest_text;
    if Pdh::parse(&collection).is_ok_and(|asked| portable_data_hash(&text) != asked) {
        return Err(MountError::WrongCollection { target, collection });
    }
    match Manifest::parse(&text) {
        Ok(manifest) => Ok(manifest.tree()),
        Err(source) => Err(MountError::Content {
            target,
            collection,
            source,
        }),
    }
}

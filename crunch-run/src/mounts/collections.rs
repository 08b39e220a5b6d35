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
pub type Trees = HashMap<String, Content>;

/// A collection as it was when it was asked for.
#[derive(Debug, Clone)]
pub struct Content {
    /// Its name by content, whatever it was asked for by.
    pub hash: Pdh,
    pub tree: Arc<FileTree>,
}

/// Fetches what `wanted` names; each name comes with a mount that needs it, for messages.
pub async fn fetch(client: &Client, wanted: BTreeMap<String, String>) -> Result<Trees, MountError> {
    stream::iter(wanted)
        .map(|(collection, target)| async move {
            let content = fetch_one(client, &collection, target).await?;
            Ok((collection, content))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn fetch_one(
    client: &Client,
    collection: &str,
    target: String,
) -> Result<Content, MountError> {
    if collection == EMPTY {
        // It need not have been saved to be mounted.
        return Ok(Content {
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
    // What was asked for by content is checked by content.
    if Pdh::parse(&collection).is_ok_and(|asked| asked != hash) {
        return Err(MountError::WrongCollection { target, collection });
    }
    match Manifest::parse(&text) {
        Ok(manifest) => Ok(Content {
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

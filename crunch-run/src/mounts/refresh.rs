//! New signatures for the collections a container has mounted: it may run for longer than those
//! of its inputs last, and its output refers to the same blocks.

use std::collections::BTreeMap;

use arvados_client::Client;

use super::collections;
use super::error::MountError;
use super::view::{Source, View};

/// The same view, with every collection asked for again by its content.
pub async fn signed_anew(view: &View, client: &Client) -> Result<View, MountError> {
    let mut wanted = BTreeMap::new();
    for (target, seen) in &view.mounts {
        if let Source::Keep { collection, .. } = &seen.source {
            wanted.insert(collection.to_string(), target.to_string());
        }
    }
    let known = collections::fetch(client, wanted).await?;
    let mut view = view.clone();
    for seen in view.mounts.values_mut() {
        if let Source::Keep {
            collection, tree, ..
        } = &mut seen.source
            && let Some(content) = known.get(collection.as_str())
        {
            *tree = content.tree.clone();
        }
    }
    Ok(view)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arvados_client::keep::CollectionWriter;
    use arvados_client::{Endpoint, Token};
    use dispatch_api::{Options, Server};
    use serde_json::json;

    use super::super::{ContainerPath, Seen};
    use super::*;

    #[tokio::test]
    async fn signatures_become_new_and_the_content_stays() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path().join("state"));
        let server = Server::start(&options).await.unwrap();
        let ready = serde_json::to_value(server.ready()).unwrap();
        let token = std::fs::read_to_string(ready["tokens"]["user"].as_str().unwrap()).unwrap();
        let host = ready["host"].as_str().unwrap();
        let mut endpoint = Endpoint::new(host, Token::new(token)).unwrap();
        endpoint.ca_file = Some(ready["certificate"].as_str().unwrap().into());
        let client = Client::new(endpoint).unwrap();
        let options = client.keep_options().await.unwrap();
        let mut writer = CollectionWriter::new(client.keep(options).await.unwrap());
        writer.start_file("f").unwrap();
        writer.write(b"content").await.unwrap();
        let manifest = writer.finish().await.unwrap();
        let attributes = json!({"manifest_text": manifest.to_string()});
        client.create_collection(attributes).await.unwrap();

        let target = ContainerPath::parse("/in").unwrap();
        let source = Source::Keep {
            collection: manifest.pdh(),
            tree: std::sync::Arc::new(manifest.tree()),
            path: String::new(),
        };
        let seen = Seen {
            source,
            excluded: true,
        };
        let old = View {
            mounts: [(target.clone(), seen)].into(),
        };
        // Signatures tell the second of their end.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let new = signed_anew(&old, &client).await.unwrap();
        let signed = |view: &View| match &view.at(&target).unwrap().source {
            Source::Keep { tree, .. } => tree.to_manifest(),
            other => panic!("{other:?}"),
        };
        assert_ne!(signed(&old).to_string(), signed(&new).to_string());
        assert_eq!(signed(&old).pdh(), signed(&new).pdh());
        assert!(new.at(&target).unwrap().excluded);
    }
}

//! File trees of the collections that the container had mounted.
//!
//! Their block signatures may have expired, or another process may have staged them. Then the
//! collections that the output can refer to are fetched again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arvados_client::Client;
use arvados_client::ids::Pdh;
use arvados_client::manifest::FileTree;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::error::OutputError;
use super::glob::Globs;
use crate::inputs::{
    ContainerPath, ContentAge, MountError, MountSource, MountTable, Staged, fetch_collections,
};

#[derive(Debug)]
pub struct MountedCollections {
    /// `None` if the trees are still as they were mounted.
    renewal: Option<SignatureRenewal>,
}

#[derive(Debug)]
struct SignatureRenewal {
    client: Client,
    runtime: Handle,
    contents: ContentAge,
    trees: Mutex<HashMap<String, Arc<FileTree>>>,
}

impl MountedCollections {
    /// Prepares the trees for one output. Collections mounted below the output are fetched at once.
    pub async fn for_output(staged: &Staged, globs: &Globs) -> Self {
        let contents = staged.contents();
        if contents == ContentAge::Fresh {
            return Self { renewal: None };
        }
        let wanted = collections_below(&staged.view, &staged.output, globs);
        let trees = match fetch_collections(&staged.client, wanted).await {
            Ok(trees) => trees.into_iter().map(|(name, c)| (name, c.tree)).collect(),
            // The scan fetches each of them again and reports which one failed.
            Err(_) => HashMap::new(),
        };
        Self {
            renewal: Some(SignatureRenewal {
                client: staged.client.clone(),
                runtime: Handle::current(),
                contents,
                trees: Mutex::new(trees),
            }),
        }
    }

    /// The file tree of `collection`, which was mounted at `target` as `mounted`. May block.
    pub fn tree(
        &self,
        collection: &Pdh,
        mounted: &Arc<FileTree>,
        target: &ContainerPath,
    ) -> Result<Arc<FileTree>, OutputError> {
        let Some(renewal) = &self.renewal else {
            return Ok(mounted.clone());
        };
        let mut trees = renewal.trees.lock();
        if let Some(tree) = trees.get(collection.as_str()) {
            return Ok(tree.clone());
        }
        let wanted = BTreeMap::from([(collection.to_string(), target.to_string())]);
        let fetched = fetch_collections(&renewal.client, wanted);
        let tree = match renewal.runtime.block_on(fetched) {
            Ok(mut fetched) => fetched.remove(collection.as_str()).map(|c| c.tree),
            // The collection was deleted, but its blocks and their signatures may still be valid.
            Err(MountError::NoCollection { .. }) if renewal.contents == ContentAge::Stale => None,
            Err(error) => return Err(OutputError::Input(Box::new(error))),
        };
        let tree = tree.unwrap_or_else(|| mounted.clone());
        trees.insert(collection.to_string(), tree.clone());
        Ok(tree)
    }
}

/// The collections mounted at or below the output that may become part of it.
fn collections_below(
    view: &MountTable,
    output: &ContainerPath,
    globs: &Globs,
) -> BTreeMap<String, String> {
    let mut wanted = BTreeMap::new();
    for target in view.below(output).chain([output]) {
        let dest = target.below(output).unwrap_or_default();
        if let Some(entry) = view.at(target)
            && let MountSource::Keep { collection, .. } = &entry.source
            && !entry.excluded
            && (globs.wants_file(dest) || globs.could_want_below(dest))
        {
            wanted.insert(collection.to_string(), target.to_string());
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use arvados_client::keep::{CollectionWriter, KeepClient};
    use arvados_client::manifest::Manifest;
    use arvados_client::records::Container;
    use arvados_client::{Endpoint, Token};
    use dispatch_api::{Options, Server};
    use serde_json::{Value, json};

    use super::*;
    use crate::inputs::PersistedMounts;
    use crate::output::BadEntries;

    struct World {
        client: Client,
        keep: KeepClient,
        dir: tempfile::TempDir,
        _server: Server,
    }

    impl World {
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let server = Server::start(&Options::new(dir.path().join("state")))
                .await
                .unwrap();
            let ready = serde_json::to_value(server.ready()).unwrap();
            let token = std::fs::read_to_string(ready["tokens"]["user"].as_str().unwrap()).unwrap();
            let host = ready["host"].as_str().unwrap();
            let mut endpoint = Endpoint::new(host, Token::new(token)).unwrap();
            endpoint.ca_file = Some(ready["certificate"].as_str().unwrap().into());
            let client = Client::new(endpoint).unwrap();
            let options = client.keep_options().await.unwrap();
            std::fs::create_dir(dir.path().join("out")).unwrap();
            Self {
                keep: client.keep(options).await.unwrap(),
                client,
                dir,
                _server: server,
            }
        }

        async fn collection(&self, file: &str) -> Pdh {
            let mut writer = CollectionWriter::new(self.keep.clone());
            writer.start_file(file).unwrap();
            writer.write(file.as_bytes()).await.unwrap();
            let manifest = writer.finish().await.unwrap().to_string();
            let attributes = json!({"manifest_text": manifest});
            let made = self.client.create_collection(attributes).await.unwrap();
            made.portable_data_hash.unwrap()
        }

        /// Mounts as another process noted them.
        fn noted(&self, mut mounts: Value) -> Staged {
            let output = json!({"target": "/out", "kind": "host", "path": "out"});
            mounts.as_array_mut().unwrap().push(output);
            let noted = json!({"output_path": "/out", "output_dir": "out", "mounts": mounts});
            let noted: PersistedMounts = serde_json::from_value(noted).unwrap();
            noted.restore(self.dir.path(), self.client.clone()).unwrap()
        }

        async fn capture(&self, staged: &Staged, globs: &[&str]) -> Result<Manifest, OutputError> {
            let container: Container = serde_json::from_value(json!({
                "uuid": "zzzzz-dz642-0123456789abcde", "output_glob": globs,
            }))
            .unwrap();
            let bad_entries = BadEntries::Refuse;
            let captured =
                crate::output::capture(staged, &container, &self.keep, bad_entries, &|_| {});
            Ok(captured.await?.manifest)
        }
    }

    fn mount(target: &str, collection: impl ToString) -> Value {
        json!({
            "target": target, "kind": "collection", "path": "",
            "portable_data_hash": collection.to_string(),
        })
    }

    fn names(manifest: &Manifest) -> Vec<String> {
        manifest.files().map(|file| file.path).collect()
    }

    const NOWHERE: &str = "acbd18db4cc2f85cedef654fccc4a4d8+3";

    #[tokio::test]
    async fn only_what_the_output_can_refer_to_is_asked_for() {
        let world = World::new().await;
        let (inside, linked) = (world.collection("a").await, world.collection("b").await);
        let staged = world.noted(json!([
            mount("/out/include/d", &inside),
            mount("/out/exclude/d", NOWHERE),
            mount("/in/unused", NOWHERE),
            mount("/in/linked", &linked),
        ]));
        std::os::unix::fs::symlink("/in/linked", world.dir.path().join("out/link")).unwrap();
        let both = ["*clude/d/a", "link/*"];
        let manifest = world.capture(&staged, &["include/**", "link/*"]).await;
        assert_eq!(names(&manifest.unwrap()), ["include/d/a", "link/b"]);

        for wants_it in [&[][..], &both] {
            let error = world.capture(&staged, wants_it).await.unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("/out/exclude/d") && text.contains(NOWHERE),
                "{text}"
            );
            assert!(error.is_user_error());
        }
    }

    #[tokio::test]
    async fn a_secret_stays_out_when_its_file_is_gone() {
        let world = World::new().await;
        let staged = world.noted(json!([
            {"target": "/out/secret", "kind": "secret"},
            {"target": "/s", "kind": "host", "path": "secret", "exclude_from_output": true},
        ]));
        let out = world.dir.path().join("out");
        std::fs::write(out.join("secret"), "").unwrap();
        std::fs::write(out.join("f"), "x").unwrap();
        std::os::unix::fs::symlink("/out/secret", out.join("link")).unwrap();
        std::os::unix::fs::symlink("/s", out.join("link2")).unwrap();
        let manifest = world.capture(&staged, &[]).await.unwrap();
        assert_eq!(names(&manifest), ["f"]);
    }

    #[tokio::test]
    async fn signatures_become_new_and_what_is_gone_keeps_its_old_ones() {
        let world = World::new().await;
        let there = world.collection("a").await;
        let staged = world.noted(json!([mount("/out/d", &there)]));
        let old = world.capture(&staged, &[]).await.unwrap();
        // Signatures contain their expiry in seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let new = world.capture(&staged, &[]).await.unwrap();
        assert_ne!(old.to_string(), new.to_string());
        assert_eq!(old.pdh(), new.pdh());

        let trees = MountedCollections {
            renewal: Some(SignatureRenewal {
                client: world.client.clone(),
                runtime: Handle::current(),
                contents: ContentAge::Stale,
                trees: Mutex::default(),
            }),
        };
        let mounted = Arc::new(old.tree());
        let tree = tokio::task::spawn_blocking(move || {
            let target = ContainerPath::parse("/in").unwrap();
            let gone = Pdh::parse(NOWHERE).unwrap();
            trees.tree(&gone, &mounted, &target).unwrap()
        });
        assert_eq!(*tree.await.unwrap(), old.tree());
    }

    #[test]
    fn paths_are_relative_to_the_note() {
        let text = json!({"output_path": "/out", "output_dir": "s/o", "mounts": [
            {"target": "/out", "kind": "host", "path": "s/o"},
            {"target": "/t", "kind": "host", "path": "/elsewhere/t"},
        ]});
        let noted: PersistedMounts = serde_json::from_value(text.clone()).unwrap();
        let client = Client::new(Endpoint::new("localhost:1", Token::new("x")).unwrap()).unwrap();
        let staged = noted.restore(Path::new("/moved"), client).unwrap();
        assert_eq!(staged.output_dir, Path::new("/moved/s/o"));
        let again = PersistedMounts::of(&staged, Path::new("/moved"));
        assert_eq!(serde_json::to_value(again).unwrap(), text);
    }
}

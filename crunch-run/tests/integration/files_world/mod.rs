//! A server with collections, a container's mounts on this node, and what a container would do to
//! them.

// Two test programs each use a part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use arvados_client::keep::{BlockStore, CollectionWriter, FileReader, KeepClient};
use arvados_client::manifest::Manifest;
use arvados_client::records::{Container, Mount};
use arvados_client::{Client, Endpoint, Token};
use crunch_run::inputs::{self, MountError, Progress, Sources, Staged};
use crunch_run::output::{self, BadEntries, Captured, OutputError};
use dispatch_api::{Options, Server};
use node_cache::BlockCache;
use serde_json::{Value, json};
use tempfile::TempDir;

pub struct World {
    pub client: Client,
    pub keep: KeepClient,
    directory: TempDir,
    _server: Server,
}

/// The mounts of one container.
pub struct Lab {
    pub world: World,
    pub staged: Staged,
    pub container: Container,
}

pub fn container(record: &Value) -> Container {
    let mut whole = json!({"uuid": "zzzzz-dz642-0123456789abcde", "output_path": "/ctr/outdir"});
    let more = record.as_object().unwrap().clone();
    whole.as_object_mut().unwrap().extend(more);
    serde_json::from_value(whole).unwrap()
}

impl World {
    pub async fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(&Options::new(directory.path().join("state")))
            .await
            .unwrap();
        let ready = serde_json::to_value(server.ready()).unwrap();
        let token = std::fs::read_to_string(ready["tokens"]["user"].as_str().unwrap()).unwrap();
        let host = ready["host"].as_str().unwrap();
        let mut endpoint = Endpoint::new(host, Token::new(token)).unwrap();
        endpoint.ca_file = Some(ready["certificate"].as_str().unwrap().into());
        let client = Client::new(endpoint).unwrap();
        let options = client.keep_options().await.unwrap();
        let keep = client.keep(options).await.unwrap();
        World {
            client,
            keep,
            directory,
            _server: server,
        }
    }

    /// Saves a collection of these files; returns its portable data hash.
    pub async fn collection(&self, files: &[(&str, &str)]) -> String {
        let mut writer = CollectionWriter::new(self.keep.clone());
        for (path, text) in files {
            writer.start_file(path).unwrap();
            writer.write(text.as_bytes()).await.unwrap();
        }
        self.save(&writer.finish().await.unwrap().to_string()).await
    }

    pub async fn save(&self, manifest: &str) -> String {
        let attributes = json!({"manifest_text": manifest});
        let saved = self.client.create_collection(attributes).await.unwrap();
        saved.portable_data_hash.unwrap().to_string()
    }

    pub fn scratch(&self) -> PathBuf {
        self.directory.path().join("scratch")
    }

    /// Stages the mounts of a container in a scratch directory of its own.
    pub async fn stage(&self, container: &Container, secret: &Value) -> Result<Staged, MountError> {
        let secret: BTreeMap<String, Mount> = serde_json::from_value(secret.clone()).unwrap();
        let plan = inputs::plan(container, &secret, false)?;
        let scratch = self.scratch();
        let _ = std::fs::remove_dir_all(&scratch);
        std::fs::create_dir(&scratch).unwrap();
        let reports = Mutex::new(Vec::new());
        let progress = |progress: Progress| reports.lock().unwrap().push(progress);
        let sources = Sources {
            client: &self.client,
            blocks: &BlockCache::none(self.keep.clone()),
            scratch: &scratch,
            tree: None,
            progress: &progress,
        };
        let staged = inputs::stage(plan, sources).await?;
        if let Some(last) = reports.lock().unwrap().last() {
            assert_eq!(last.done, last.total, "the last report is not the end");
        }
        Ok(staged)
    }

    pub async fn lab(self, record: Value) -> Lab {
        self.lab_with_secrets(record, json!({})).await
    }

    pub async fn lab_with_secrets(self, record: Value, secret: Value) -> Lab {
        let container = container(&record);
        let staged = self.stage(&container, &secret).await.unwrap();
        Lab {
            world: self,
            staged,
            container,
        }
    }
}

/// The node's path of a container's path, as the bind mounts define it.
pub fn node_path(staged: &Staged, path: &str) -> PathBuf {
    let around = staged
        .binds
        .iter()
        .filter(|bind| Path::new(path).starts_with(&bind.target));
    let bind = around.max_by_key(|bind| bind.target.components().count());
    let bind = bind.unwrap_or_else(|| panic!("{path} is in no mount"));
    let relative = Path::new(path).strip_prefix(&bind.target).unwrap();
    match relative.as_os_str().is_empty() {
        true => bind.host.clone(),
        false => bind.host.join(relative),
    }
}

impl Lab {
    /// Makes what a container would: directories (ending in /), files (name = content) and links
    /// (name -> target).
    pub fn act(&self, deeds: &[&str]) {
        for deed in deeds {
            let path = |path: &str| match path.strip_prefix('/') {
                Some(_) => node_path(&self.staged, path),
                None => node_path(&self.staged, "/ctr/outdir").join(path),
            };
            let with_parent = |name: &str| {
                let path = path(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                path
            };
            if let Some((link, target)) = deed.split_once(" -> ") {
                symlink(target, with_parent(link)).unwrap();
            } else if let Some((file, content)) = deed.split_once(" = ") {
                std::fs::write(with_parent(file), content).unwrap();
            } else {
                std::fs::create_dir_all(path(deed)).unwrap();
            }
        }
    }

    /// The output, if all of it can be saved.
    pub async fn capture(&self) -> Result<Manifest, OutputError> {
        Ok(self.capture_or(BadEntries::Refuse).await?.manifest)
    }

    pub async fn capture_or(&self, bad_entries: BadEntries) -> Result<Captured, OutputError> {
        self.capture_into(&self.world.keep, bad_entries).await
    }

    pub async fn capture_into<S: BlockStore + Clone + 'static>(
        &self,
        store: &S,
        bad_entries: BadEntries,
    ) -> Result<Captured, OutputError> {
        output::capture(&self.staged, &self.container, store, bad_entries, &|_| {}).await
    }

    /// The files that are saved where bad entries are left out, and the lines about these.
    pub async fn without_bad_entries(&self) -> (Vec<String>, Vec<String>) {
        let captured = self.capture_or(BadEntries::LeaveOut).await.unwrap();
        (
            listing(&captured.manifest),
            captured.left_out.lines().collect(),
        )
    }

    /// The output with these patterns: its files, and its empty directories with a slash at the
    /// end.
    pub async fn output_of(&mut self, globs: &[&str]) -> Vec<String> {
        self.container.output_glob = globs.iter().map(|g| (*g).to_owned()).collect();
        listing(&self.capture().await.unwrap())
    }

    pub async fn output(&mut self) -> Vec<String> {
        self.output_of(&[]).await
    }

    pub async fn error(&self) -> OutputError {
        match self.capture().await {
            Ok(manifest) => panic!("it was captured: {manifest}"),
            Err(error) => error,
        }
    }

    pub async fn read(&self, manifest: &Manifest, path: &str) -> String {
        let file = manifest.files().find(|file| file.path == path);
        let file = file.unwrap_or_else(|| panic!("no {path} in {manifest}"));
        let reader = FileReader::new(self.world.keep.clone(), &file.extents);
        String::from_utf8(reader.read_all(1 << 20).await.unwrap()).unwrap()
    }
}

pub fn listing(manifest: &Manifest) -> Vec<String> {
    let tree = manifest.tree();
    let mut names: Vec<String> = tree.files().map(|(path, _)| path).collect();
    for dir in tree.directories() {
        if tree.list(dir).is_some_and(|entries| entries.is_empty()) {
            names.push(format!("{dir}/"));
        }
    }
    names.sort();
    names
}

//! Lays out the mounts in the scratch directory: creates directories, files and mount points, and
//! lists the downloads.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arvados_client::Client;
use arvados_client::manifest::{Entry, FileTree, portable_data_hash};

use super::certificates;
use super::collections::CollectionTrees;
use super::download::{CollectionCopy, Downloads};
use super::error::{MountError, Problem};
use super::mount_files::{
    PlacedBind, failed, mount_point, no_such_path, occupied_or_failed, size, write_file,
};
use super::mount_table::{MountEntry, MountSource, MountTable};
use super::path::ContainerPath;
use super::plan::{CollectionPath, Content, Item, Plan, Role};
use super::scratch_files::{self, Access};
use super::staged::Staged;
use container_engine::Bind;

pub struct Layout {
    trees: CollectionTrees,
    /// Parent of all mounts. Only this user can enter it, because writable mounts are open to every
    /// user.
    base: PathBuf,
    output: ContainerPath,
    output_dir: PathBuf,
    placed: HashMap<ContainerPath, PlacedBind>,
    /// Directory from which collections can be bound by portable data hash.
    keep_tree: Option<PathBuf>,
    /// Targets that contain another mount.
    outer: BTreeSet<ContainerPath>,
    /// Parts of collections that are already on this node and can be bound again.
    shared: HashMap<CollectionPath, PathBuf>,
    binds: Vec<Bind>,
    view: MountTable,
    downloads: Downloads,
}

impl Layout {
    /// Creates all directories, files and mount points. Returns them with the pending downloads.
    pub fn of(
        plan: Plan,
        trees: CollectionTrees,
        scratch: &Path,
        keep_tree: Option<PathBuf>,
        client: Client,
    ) -> Result<(Staged, Downloads), MountError> {
        let base = scratch.join("mounts");
        let made = scratch_files::create_dir(&base, Access::ReadOnly)
            .and_then(|()| scratch_files::set_mode(&base, 0o700));
        made.map_err(|error| failed("/", &base, error))?;
        let mut layout = Self {
            trees,
            output_dir: base.join("output"),
            base,
            keep_tree,
            placed: HashMap::new(),
            outer: BTreeSet::new(),
            shared: HashMap::new(),
            binds: Vec::new(),
            view: MountTable::default(),
            downloads: Downloads::default(),
            output: plan.output,
        };
        for item in &plan.items {
            layout.outer.extend(item.target.parent().and_above());
        }
        layout.check_space(&plan.items)?;
        for (index, item) in plan.items.into_iter().enumerate() {
            layout.add_mount(index, item)?;
        }
        if plan.certificates {
            layout.add_certificates()?;
        }
        let stdin = plan.stdin.map(|content| layout.add_stdin(content));
        let stdin = stdin.transpose()?;
        let stdout = plan.stdout.map(|path| layout.add_stream("stdout", &path));
        let stdout = stdout.transpose()?;
        let stderr = plan.stderr.map(|path| layout.add_stream("stderr", &path));
        let stderr = stderr.transpose()?;
        let staged = Staged {
            binds: layout.binds,
            stdin,
            stdout,
            stderr,
            output_dir: layout.output_dir,
            output: layout.output,
            view: Arc::new(layout.view),
            client,
            fetched_at: Some(Instant::now()),
        };
        Ok((staged, layout.downloads))
    }

    /// Creates one mount and adds it to the mount table.
    fn add_mount(&mut self, index: usize, item: Item) -> Result<(), MountError> {
        let Item {
            target,
            content,
            role,
            excluded,
            secret,
        } = item;
        let is_dir = self.is_dir(&target, &content)?;
        if let Role::Inside(relative) = &role {
            if let Some((dir, _)) = relative.rsplit_once('/') {
                let made =
                    scratch_files::create_dirs(&self.output_dir, Path::new(dir), Access::Writable);
                made.map_err(|error| occupied_or_failed(&target, &self.output_dir, error))?;
            }
            let host = self.output_dir.join(relative);
            return self.create_content(&target, &content, host, Access::Writable, secret);
        }
        let access = match role {
            Role::ReadOnly => Access::ReadOnly,
            _ => Access::Writable,
        };
        let host = match role {
            Role::Output => self.output_dir.clone(),
            _ => self.base.join(index.to_string()),
        };
        let mut source = MountSource::Host(host.clone());
        let mut bound = host.clone();
        if secret {
            source = MountSource::Secret;
        }
        match &content {
            Content::Collection(part) if access == Access::ReadOnly => {
                if let Some(content) = self.trees.get(&part.collection) {
                    source = MountSource::Keep {
                        collection: content.hash.clone(),
                        tree: content.tree.clone(),
                        path: part.path.clone(),
                    };
                }
                // A second mount of the same files needs no second copy, unless one of them
                // contains mount points.
                let alone = !self.outer.contains(&target);
                let there = self.shared.get(part).cloned();
                match there
                    .or_else(|| self.path_in_keep_tree(part))
                    .filter(|_| alone)
                {
                    Some(there) => bound = there,
                    None => {
                        self.create_content(&target, &content, host, access, secret)?;
                        if alone {
                            self.shared.insert(part.clone(), bound.clone());
                        }
                    }
                }
            }
            content => self.create_content(&target, content, host, access, secret)?,
        }
        let entry = MountEntry { source, excluded };
        self.view.mounts.insert(target.clone(), entry);
        self.bind(target, bound, is_dir, access)
    }

    /// Path of the collection in arv-mount's tree. An empty collection may not exist there.
    fn path_in_keep_tree(&self, part: &CollectionPath) -> Option<PathBuf> {
        let content = self.trees.get(&part.collection)?;
        let dir = self.keep_tree.as_ref()?.join(content.hash.as_str());
        (content.hash != portable_data_hash("")).then(|| dir.join(&part.path))
    }

    fn tree(&self, part: &CollectionPath) -> Arc<FileTree> {
        // Every collection of the plan was fetched.
        let content = self.trees.get(&part.collection);
        content
            .map(|content| content.tree.clone())
            .unwrap_or_default()
    }

    fn is_dir(&self, target: &ContainerPath, content: &Content) -> Result<bool, MountError> {
        match content {
            Content::Empty => Ok(true),
            Content::File(_) => Ok(false),
            Content::Collection(part) => {
                let tree = self.tree(part);
                match tree.lookup(&part.path) {
                    Some(Entry::File(_)) if *target == self.output => Err(MountError::NoOutput {
                        path: target.to_string(),
                    }),
                    Some(entry) => Ok(entry == Entry::Directory),
                    None => Err(no_such_path(target.as_str(), part)),
                }
            }
        }
    }

    fn create_content(
        &mut self,
        target: &ContainerPath,
        content: &Content,
        host: PathBuf,
        access: Access,
        secret: bool,
    ) -> Result<(), MountError> {
        match content {
            Content::Empty => scratch_files::create_dir(&host, access)
                .map_err(|error| occupied_or_failed(target, &host, error)),
            Content::File(bytes) => {
                let mode = match access {
                    Access::Writable if !secret => access.file_mode(),
                    _ => 0o444,
                };
                write_file(&host, bytes, mode)
                    .map_err(|error| occupied_or_failed(target, &host, error))
            }
            Content::Collection(part) => self.downloads.add(CollectionCopy {
                target: target.clone(),
                collection: part.collection.clone(),
                tree: self.tree(part),
                path: part.path.clone(),
                host,
                access,
            }),
        }
    }

    /// Adds a bind, and creates its mount point in the enclosing mount.
    fn bind(
        &mut self,
        target: ContainerPath,
        host: PathBuf,
        is_dir: bool,
        access: Access,
    ) -> Result<(), MountError> {
        let mut above = target.parent().and_above();
        let outer = above.find_map(|path| self.placed.get(&path).map(|placed| (path, placed)));
        if let Some((path, outer)) = outer {
            if !outer.is_dir {
                return Err(Problem::InsideFile(path.to_string()).of(target));
            }
            let relative = target.below(&path).unwrap_or_default();
            mount_point(outer, relative, is_dir)
                .map_err(|error| occupied_or_failed(&target, &outer.host.join(relative), error))?;
        }
        self.binds.push(Bind {
            host: host.clone(),
            target: PathBuf::from(target.as_str()),
            writable: access == Access::Writable,
        });
        let placed = PlacedBind {
            host,
            is_dir,
            access,
        };
        self.placed.insert(target, placed);
        Ok(())
    }

    fn add_certificates(&mut self) -> Result<(), MountError> {
        let named = std::env::var_os("SSL_CERT_FILE");
        let found = certificates::find(named.as_deref(), Path::is_file);
        let Some(host) = found.and_then(|path| std::path::absolute(path).ok()) else {
            tracing::warn!(
                "no file of certificates was found on this node, so the container may not trust the API server; set SSL_CERT_FILE"
            );
            return Ok(());
        };
        match ContainerPath::parse(certificates::TARGET) {
            Ok(target) => self.bind(target, host, false, Access::ReadOnly),
            // The target is a constant.
            Err(_) => Ok(()),
        }
    }

    fn add_stdin(&mut self, content: Content) -> Result<PathBuf, MountError> {
        let host = self.base.join("stdin");
        match content {
            Content::File(bytes) => {
                write_file(&host, &bytes, 0o444).map_err(|error| failed("stdin", &host, error))?;
            }
            Content::Empty => return Err(Problem::NotAFile.of("stdin")),
            Content::Collection(part) => {
                let tree = self.tree(&part);
                match tree.lookup(&part.path) {
                    Some(Entry::File(_)) => {}
                    Some(Entry::Directory) => return Err(Problem::NotAFile.of("stdin")),
                    None => return Err(no_such_path("stdin", &part)),
                }
                self.downloads.add(CollectionCopy {
                    target: ContainerPath::root().join("dev/stdin"),
                    collection: part.collection,
                    tree,
                    path: part.path,
                    host: host.clone(),
                    access: Access::ReadOnly,
                })?;
            }
        }
        Ok(host)
    }

    fn add_stream(&mut self, stream: &str, relative: &str) -> Result<PathBuf, MountError> {
        let host = self.output_dir.join(relative);
        let made = match relative.rsplit_once('/') {
            Some((dir, _)) => {
                scratch_files::create_dirs(&self.output_dir, Path::new(dir), Access::Writable)
            }
            None => Ok(()),
        };
        // The file may exist, because both streams can go to one file.
        let made = made.and_then(|()| match scratch_files::create_file(&host) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && host.is_file() => Ok(()),
            other => other.map(drop),
        });
        made.and_then(|()| scratch_files::set_mode(&host, 0o666))
            .map_err(|error| occupied_or_failed(&stream, &host, error))?;
        Ok(host)
    }

    /// Fails early if the downloads need more space than is free. Parts that are bound need none.
    fn check_space(&self, items: &[Item]) -> Result<(), MountError> {
        let mut shared: HashSet<&CollectionPath> = HashSet::new();
        let mut needed = 0u64;
        for item in items {
            let Content::Collection(part) = &item.content else {
                continue;
            };
            let is_bound = item.role == Role::ReadOnly
                && !self.outer.contains(&item.target)
                && (self.path_in_keep_tree(part).is_some() || !shared.insert(part));
            if !is_bound {
                needed = needed.saturating_add(size(&self.tree(part), &part.path));
            }
        }
        let Ok(disk) = rustix::fs::statvfs(&self.base) else {
            return Ok(());
        };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        match needed > free {
            true => Err(MountError::NoSpace {
                needed,
                free,
                place: self.base.clone(),
            }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arvados_client::manifest::Manifest;
    use arvados_client::records::Container;
    use arvados_client::{Endpoint, Token};
    use serde_json::json;

    use super::super::collections;
    use super::*;

    #[tokio::test]
    async fn inputs_that_cannot_fit_are_refused_before_anything_is_fetched() {
        let scratch = tempfile::tempdir().unwrap();
        let disk = rustix::fs::statvfs(scratch.path()).unwrap();
        // The free space may grow during the test.
        let total = disk.f_blocks * disk.f_frsize;
        // One file, repeated until it exceeds the disk.
        let block = "900150983cd24fb0d6963f7d28e17f72+67108864";
        let files = total / (64 << 20) + 2;
        let names: String = (0..files).map(|i| format!(" 0:67108864:{i}")).collect();
        let manifest = Manifest::parse(&format!(". {block}{names}\n")).unwrap();
        let hash = manifest.pdh();
        let container: Container = serde_json::from_value(json!({
            "uuid": "zzzzz-dz642-0123456789abcde", "output_path": "/out",
            "mounts": {
                "/out": {"kind": "tmp"},
                "/in": {"kind": "collection", "portable_data_hash": hash.as_str()},
            },
        }))
        .unwrap();
        let plan = || super::super::plan(&container, &BTreeMap::new(), false).unwrap();
        let tree = Arc::new(manifest.tree());
        let trees = CollectionTrees::from([(
            hash.to_string(),
            collections::CollectionContent { hash, tree },
        )]);
        let endpoint = Endpoint::new("localhost:1", Token::new("unused")).unwrap();
        let client = Client::new(endpoint).unwrap();
        let error = Layout::of(plan(), trees.clone(), scratch.path(), None, client.clone())
            .err()
            .unwrap();
        assert!(
            matches!(error, MountError::NoSpace { needed, .. } if needed > total),
            "{error}"
        );
        assert!(!error.is_user_error());
        assert_eq!(
            std::fs::read_dir(scratch.path().join("mounts"))
                .unwrap()
                .count(),
            0
        );

        // Bind mounts take no disk space.
        let keep = Some(PathBuf::from("/keep/by_id"));
        let (staged, _) = Layout::of(plan(), trees, scratch.path(), keep, client).unwrap();
        assert!(
            staged
                .binds
                .iter()
                .any(|b| b.host.starts_with("/keep/by_id"))
        );
    }
}

//! Where every mount goes in the scratch directory, and making everything there that needs no
//! fetching.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arvados_client::Client;
use arvados_client::manifest::{Entry, Extent, FileTree, ManifestError, portable_data_hash};

use super::certificates;
use super::collections::Trees;
use super::download::{Copy, Downloads};
use super::error::{MountError, Problem};
use super::path::ContainerPath;
use super::place::{self, Access};
use super::plan::{Content, Item, Part, Plan, Role};
use super::stage::Staged;
use super::view::{Seen, Source, View};
use crate::engine::Bind;

/// A bind made so far.
struct Placed {
    host: PathBuf,
    is_dir: bool,
    access: Access,
}

pub struct Layout {
    trees: Trees,
    /// Everything is below this directory, which only we can enter: what the container may write
    /// to is open to every user otherwise.
    base: PathBuf,
    output: ContainerPath,
    output_dir: PathBuf,
    placed: HashMap<ContainerPath, Placed>,
    /// Where collections can be bound from by portable data hash.
    keep_tree: Option<PathBuf>,
    /// Targets with another mount somewhere below them.
    outer: BTreeSet<ContainerPath>,
    /// Parts of collections that are on this node already and can be bound a second time.
    shared: HashMap<Part, PathBuf>,
    binds: Vec<Bind>,
    view: View,
    downloads: Downloads,
}

impl Layout {
    /// Makes all directories, files and mount points; what is still to be fetched comes beside.
    pub fn of(
        plan: Plan,
        trees: Trees,
        scratch: &Path,
        keep_tree: Option<PathBuf>,
        client: Client,
    ) -> Result<(Staged, Downloads), MountError> {
        let base = scratch.join("mounts");
        let made =
            place::directory(&base, Access::ReadOnly).and_then(|()| place::set_mode(&base, 0o700));
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
            view: View::default(),
            downloads: Downloads::default(),
            output: plan.output,
        };
        for item in &plan.items {
            layout.outer.extend(item.target.parent().and_above());
        }
        layout.check_space(&plan.items)?;
        for (index, item) in plan.items.into_iter().enumerate() {
            layout.put(index, item)?;
        }
        if plan.certificates {
            layout.put_certificates()?;
        }
        let stdin = plan.stdin.map(|content| layout.put_stdin(content));
        let stdin = stdin.transpose()?;
        let stdout = plan.stdout.map(|path| layout.put_stream("stdout", &path));
        let stdout = stdout.transpose()?;
        let stderr = plan.stderr.map(|path| layout.put_stream("stderr", &path));
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
            known_since: Some(Instant::now()),
        };
        Ok((staged, layout.downloads))
    }

    /// Makes one mount and notes how the container sees it.
    fn put(&mut self, index: usize, item: Item) -> Result<(), MountError> {
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
                let made = place::directories(&self.output_dir, Path::new(dir), Access::Writable);
                made.map_err(|error| occupied_or_failed(&target, &self.output_dir, error))?;
            }
            let host = self.output_dir.join(relative);
            return self.fill(&target, &content, host, Access::Writable, secret);
        }
        let access = match role {
            Role::ReadOnly => Access::ReadOnly,
            _ => Access::Writable,
        };
        let host = match role {
            Role::Output => self.output_dir.clone(),
            _ => self.base.join(index.to_string()),
        };
        let mut source = Source::Host(host.clone());
        let mut bound = host.clone();
        if secret {
            source = Source::Secret;
        }
        match &content {
            Content::Collection(part) if access == Access::ReadOnly => {
                if let Some(known) = self.trees.get(&part.collection) {
                    source = Source::Keep {
                        collection: known.hash.clone(),
                        tree: known.tree.clone(),
                        path: part.path.clone(),
                    };
                }
                // A second mount of the same files needs no second copy, unless one of them gets
                // mount points of its own.
                let alone = !self.outer.contains(&target);
                let there = self.shared.get(part).cloned();
                match there.or_else(|| self.in_tree(part)).filter(|_| alone) {
                    Some(there) => bound = there,
                    None => {
                        self.fill(&target, &content, host, access, secret)?;
                        if alone {
                            self.shared.insert(part.clone(), bound.clone());
                        }
                    }
                }
            }
            content => self.fill(&target, content, host, access, secret)?,
        }
        let seen = Seen { source, excluded };
        self.view.mounts.insert(target.clone(), seen);
        self.bind(target, bound, is_dir, access)
    }

    /// Nothing can be mounted inside of that, and an empty collection need not have been saved.
    fn in_tree(&self, part: &Part) -> Option<PathBuf> {
        let known = self.trees.get(&part.collection)?;
        let dir = self.keep_tree.as_ref()?.join(known.hash.as_str());
        (known.hash != portable_data_hash("")).then(|| dir.join(&part.path))
    }

    fn tree(&self, part: &Part) -> Arc<FileTree> {
        // Every collection of the plan has been fetched.
        let known = self.trees.get(&part.collection);
        known.map(|known| known.tree.clone()).unwrap_or_default()
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

    fn fill(
        &mut self,
        target: &ContainerPath,
        content: &Content,
        host: PathBuf,
        access: Access,
        secret: bool,
    ) -> Result<(), MountError> {
        match content {
            Content::Empty => place::directory(&host, access)
                .map_err(|error| occupied_or_failed(target, &host, error)),
            Content::File(bytes) => {
                let mode = match access {
                    Access::Writable if !secret => access.file_mode(),
                    _ => 0o444,
                };
                write_file(&host, bytes, mode)
                    .map_err(|error| occupied_or_failed(target, &host, error))
            }
            Content::Collection(part) => self.downloads.add(Copy {
                target: target.clone(),
                collection: part.collection.clone(),
                tree: self.tree(part),
                path: part.path.clone(),
                host,
                access,
            }),
        }
    }

    /// Notes a bind, and makes the place for it in the mount around it, which is ours to write to
    /// only now.
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
        let placed = Placed {
            host,
            is_dir,
            access,
        };
        self.placed.insert(target, placed);
        Ok(())
    }

    fn put_certificates(&mut self) -> Result<(), MountError> {
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
            // A constant.
            Err(_) => Ok(()),
        }
    }

    fn put_stdin(&mut self, content: Content) -> Result<PathBuf, MountError> {
        let host = self.base.join("stdin");
        match content {
            Content::File(bytes) => {
                write_file(&host, &bytes, 0o400).map_err(|error| failed("stdin", &host, error))?;
            }
            Content::Empty => return Err(Problem::NotAFile.of("stdin")),
            Content::Collection(part) => {
                let tree = self.tree(&part);
                match tree.lookup(&part.path) {
                    Some(Entry::File(_)) => {}
                    Some(Entry::Directory) => return Err(Problem::NotAFile.of("stdin")),
                    None => return Err(no_such_path("stdin", &part)),
                }
                self.downloads.add(Copy {
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

    fn put_stream(&mut self, stream: &str, relative: &str) -> Result<PathBuf, MountError> {
        let host = self.output_dir.join(relative);
        let made = match relative.rsplit_once('/') {
            Some((dir, _)) => {
                place::directories(&self.output_dir, Path::new(dir), Access::Writable)
            }
            None => Ok(()),
        };
        // It may be there: both streams can go to one file.
        let made = made.and_then(|()| match place::file(&host) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && host.is_file() => Ok(()),
            other => other.map(drop),
        });
        made.and_then(|()| place::set_mode(&host, 0o666))
            .map_err(|error| occupied_or_failed(&stream, &host, error))?;
        Ok(host)
    }

    /// Says now what would become a failure in the middle of a long download. What can be bound, as `put` does it,
    /// is not written.
    fn check_space(&self, items: &[Item]) -> Result<(), MountError> {
        let mut shared: HashSet<&Part> = HashSet::new();
        let mut needed = 0u64;
        for item in items {
            let Content::Collection(part) = &item.content else {
                continue;
            };
            let is_bound = item.role == Role::ReadOnly
                && !self.outer.contains(&item.target)
                && (self.in_tree(part).is_some() || !shared.insert(part));
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

/// Bytes of all files at a path of a collection.
fn size(tree: &FileTree, path: &str) -> u64 {
    let sum = |extents: &[Extent]| extents.iter().map(|extent| extent.len).sum::<u64>();
    match tree.lookup(path) {
        Some(Entry::File(extents)) => sum(extents),
        Some(Entry::Directory) if path.is_empty() => {
            tree.files().map(|(_, extents)| sum(extents)).sum()
        }
        Some(Entry::Directory) => tree.subtree(path).map_or(0, |part| size(&part, "")),
        None => 0,
    }
}

fn write_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    place::file(path)?.write_all(bytes)?;
    place::set_mode(path, mode)
}

/// The directory or empty file another mount will cover.
fn mount_point(outer: &Placed, relative: &str, is_dir: bool) -> io::Result<()> {
    let (dir, name) = relative.rsplit_once('/').unwrap_or(("", relative));
    place::directories(&outer.host, Path::new(dir), outer.access)?;
    let path = outer.host.join(dir).join(name);
    match is_dir {
        true => place::directory(&path, Access::ReadOnly),
        false if path.is_file() => Ok(()),
        false => place::file(&path).map(drop),
    }
}

fn no_such_path(target: &str, part: &Part) -> MountError {
    MountError::Content {
        target: target.to_owned(),
        collection: part.collection.clone(),
        source: Box::new(ManifestError::NoSuchPath {
            path: part.path.clone(),
        }),
    }
}

fn failed(target: &(impl ToString + ?Sized), path: &Path, source: io::Error) -> MountError {
    MountError::Write {
        target: target.to_string(),
        path: path.to_owned(),
        source,
    }
}

/// Only contents of other mounts can be in the way in a directory that was empty.
fn occupied_or_failed(target: &impl ToString, path: &Path, source: io::Error) -> MountError {
    use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory};
    if place::is_bad_name(&source) {
        return Problem::TargetName.of(target.to_string());
    }
    match source.kind() {
        AlreadyExists | NotADirectory | IsADirectory => Problem::Occupied {
            path: target.to_string(),
            found: match path.is_dir() {
                true => "a directory",
                false => "a file",
            },
        }
        .of(target.to_string()),
        _ => failed(target, path, source),
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
        // What is free may become more meanwhile.
        let total = disk.f_blocks * disk.f_frsize;
        // One file, as often as needed to be larger than the disk.
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
        let trees = Trees::from([(hash.to_string(), collections::Content { hash, tree })]);
        let endpoint = Endpoint::new("localhost:1", Token::new("unused")).unwrap();
        let client = Client::new(endpoint).unwrap();
        let error = Layout::of(plan(), trees.clone(), scratch.path(), None, client.clone())
            .err()
            .unwrap();
        assert!(
            matches!(error, MountError::NoSpace { needed, .. } if needed > total),
            "{error}"
        );
        assert!(!error.is_users_mistake());
        assert_eq!(
            std::fs::read_dir(scratch.path().join("mounts"))
                .unwrap()
                .count(),
            0
        );

        // What is only bound takes no room.
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

//! Plans the mounts of a container from its record alone. In: the record, secret mounts. Out: a
//! [`Plan`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use arvados_client::ids::{CollectionUuid, Pdh};
use arvados_client::records::{Container, Mount, MountKind};

use super::certificates;
use super::error::{MountError, Problem};
use super::path::ContainerPath;
use super::text_mount;

/// All planned mounts. Contains secrets, so it is not printed.
pub struct Plan {
    pub(super) output: ContainerPath,
    /// All mounts, the output included; outer mounts come before those inside them.
    pub(super) items: Vec<Item>,
    pub(super) stdin: Option<Content>,
    /// Relative to the output directory.
    pub(super) stdout: Option<String>,
    pub(super) stderr: Option<String>,
    /// Whether the container gets this node's CA certificates.
    pub(super) certificates: bool,
}

/// One mount.
pub(super) struct Item {
    pub target: ContainerPath,
    pub content: Content,
    pub role: Role,
    pub excluded: bool,
    pub secret: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// An empty directory.
    Empty,
    File(Vec<u8>),
    Collection(CollectionPath),
}

/// A collection, or a directory or file of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CollectionPath {
    /// uuid or portable data hash.
    pub collection: String,
    /// Path in the collection; empty for all of it.
    pub path: String,
}

/// Role of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// The output directory.
    Output,
    /// Copied into the output directory at this path, and then writable for the container.
    Inside(String),
    ReadOnly,
    Writable,
}

// The content may be secret.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::File(bytes) => write!(f, "File({} bytes)", bytes.len()),
            Self::Collection(part) => part.fmt(f),
        }
    }
}

const STREAMS: [&str; 3] = ["stdin", "stdout", "stderr"];

/// Plans the mounts. `secret` are the secret mounts. With `api_access` the container also gets CA
/// certificates.
pub fn plan(
    container: &Container,
    secret: &BTreeMap<String, Mount>,
    api_access: bool,
) -> Result<Plan, MountError> {
    let output = ContainerPath::parse_target(&container.output_path).map_err(|problem| {
        MountError::OutputPath {
            path: container.output_path.clone(),
            problem,
        }
    })?;
    for (target, mount) in secret {
        if container.mounts.contains_key(target) {
            return Err(Problem::SecretAndRegular.of(target));
        }
        if !matches!(mount.kind, MountKind::Json | MountKind::Text) {
            return Err(Problem::SecretKind(kind_name(mount)).of(target));
        }
    }

    let mut stdin = None;
    let mut by_target: BTreeMap<ContainerPath, RequestedMount<'_>> = BTreeMap::new();
    let regular = container.mounts.iter().map(|(t, m)| (t, m, false));
    let secret = secret.iter().map(|(t, m)| (t, m, true));
    for (target, mount, secret) in regular.chain(secret) {
        if target == "stdin" {
            stdin = Some(stdin_content(mount)?);
        } else if STREAMS.contains(&target.as_str()) {
            if mount.kind != MountKind::File {
                return Err(Problem::NotFile(kind_name(mount)).of(target));
            }
        } else {
            let path =
                ContainerPath::parse_target(target).map_err(|p| Problem::Target(p).of(target))?;
            if let Some(system) = path.in_system_directory() {
                return Err(Problem::System(system).of(target));
            }
            let requested = RequestedMount {
                spelling: target,
                mount,
                secret,
            };
            if let Some(other) = by_target.insert(path, requested) {
                return Err(Problem::Twice(other.spelling.to_owned()).of(target));
            }
        }
    }
    if !by_target
        .get(&output)
        .is_some_and(RequestedMount::can_be_output)
    {
        return Err(MountError::NoOutput {
            path: output.to_string(),
        });
    }

    let mut order: Vec<_> = by_target.into_iter().collect();
    order.sort_by_key(|(target, _)| target.depth());
    let mut items = Items::default();
    for (target, requested) in order {
        let outer = items.enclosing(&target);
        if let Some(outer) = outer.filter(|outer| matches!(outer.content, Content::File(_))) {
            return Err(Problem::InsideFile(outer.target.to_string()).of(target));
        }
        let content = content(target.as_str(), requested.mount)?;
        let role = role(&target, &requested, &output, outer)?;
        items.push(Item {
            content,
            role,
            excluded: requested.mount.exclude_from_output,
            secret: requested.secret,
            target,
        });
    }
    let certificates = ContainerPath::parse(certificates::TARGET)
        .is_ok_and(|path| api_access && items.at(&path).is_none());
    Ok(Plan {
        stdout: stream_file("stdout", container, &output, &items)?,
        stderr: stream_file("stderr", container, &output, &items)?,
        output,
        items: items.list,
        stdin,
        certificates,
    })
}

struct RequestedMount<'a> {
    /// The target as the record spells it.
    spelling: &'a str,
    mount: &'a Mount,
    secret: bool,
}

impl RequestedMount<'_> {
    fn can_be_output(&self) -> bool {
        match self.mount.kind {
            MountKind::Tmp => true,
            MountKind::Collection => self.mount.writable,
            _ => false,
        }
    }
}

/// The mounts planned so far; there may be tens of thousands.
#[derive(Default)]
struct Items {
    list: Vec<Item>,
    by_target: HashMap<ContainerPath, usize>,
}

impl Items {
    fn push(&mut self, item: Item) {
        self.by_target.insert(item.target.clone(), self.list.len());
        self.list.push(item);
    }

    fn at(&self, target: &ContainerPath) -> Option<&Item> {
        self.by_target.get(target).map(|index| &self.list[*index])
    }

    /// The innermost mount that contains `target`.
    fn enclosing(&self, target: &ContainerPath) -> Option<&Item> {
        target.parent().and_above().find_map(|path| self.at(&path))
    }
}

fn kind_name(mount: &Mount) -> String {
    mount.kind.to_string()
}

fn role(
    target: &ContainerPath,
    requested: &RequestedMount<'_>,
    output: &ContainerPath,
    outer: Option<&Item>,
) -> Result<Role, MountError> {
    let mount = requested.mount;
    if target == output {
        return Ok(Role::Output);
    }
    let inside = target.below(output);
    let is_collection = mount.kind == MountKind::Collection;
    let plain_file = matches!(mount.kind, MountKind::Json | MountKind::Text);
    if inside.is_some() && !is_collection && !plain_file {
        return Err(Problem::BelowOutput(kind_name(mount)).of(target));
    }
    if is_collection && !mount.writable {
        return Ok(Role::ReadOnly);
    }
    if let Some(relative) = inside.filter(|_| !requested.secret) {
        let outer_is_copied =
            outer.is_some_and(|outer| matches!(outer.role, Role::Output | Role::Inside(_)));
        // Excluded mounts, and mounts inside another mount below the output path, cannot be copied
        // into the output directory. Both stay mounts of their own.
        return Ok(match outer_is_copied && !mount.exclude_from_output {
            true => Role::Inside(relative.to_owned()),
            false => Role::Writable,
        });
    }
    if is_collection && !mount.portable_data_hash.is_empty() {
        return Err(Problem::WritablePdh.of(target));
    }
    Ok(match plain_file {
        true => Role::ReadOnly,
        false => Role::Writable,
    })
}

fn content(target: &str, mount: &Mount) -> Result<Content, MountError> {
    match &mount.kind {
        MountKind::Tmp => Ok(Content::Empty),
        MountKind::Json => Ok(Content::File(
            text_mount::canonical_json(&mount.content).into_bytes(),
        )),
        MountKind::Text => match mount.content.as_str() {
            Some(text) => Ok(Content::File(text.into())),
            None => Err(Problem::NotText.of(target)),
        },
        MountKind::Collection => part(mount)
            .map(|part| part.map_or(Content::Empty, Content::Collection))
            .map_err(|problem| problem.of(target)),
        MountKind::Keep | MountKind::File | MountKind::Unknown(_) => {
            Err(Problem::Kind(kind_name(mount)).of(target))
        }
    }
}

/// The collection that a mount names; `None` for a new, empty one.
fn part(mount: &Mount) -> Result<Option<CollectionPath>, Problem> {
    let (uuid, hash) = (&mount.uuid, &mount.portable_data_hash);
    match (uuid.is_empty(), hash.is_empty()) {
        (true, true) => Ok(None),
        (false, false) => Err(Problem::TwoNames),
        (false, true) if mount.writable => Err(Problem::WritableUuid),
        (false, true) => {
            let uuid = CollectionUuid::parse(uuid).map_err(Problem::Collection)?;
            Ok(Some(CollectionPath {
                collection: uuid.to_string(),
                path: clean(&mount.path),
            }))
        }
        (true, false) => {
            // A path may follow the hash, as in "…+45/dir".
            let (hash, path) = hash.split_once('/').unwrap_or((hash, ""));
            let hash = Pdh::parse(hash).map_err(Problem::Collection)?;
            Ok(Some(CollectionPath {
                collection: hash.to_string(),
                path: clean(&format!("{path}/{}", mount.path)),
            }))
        }
    }
}

/// Removes `.` and empty parts. A `..` stays, because no collection has such a path.
fn clean(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.collect::<Vec<_>>().join("/")
}

fn stdin_content(mount: &Mount) -> Result<Content, MountError> {
    match mount.kind {
        MountKind::Json | MountKind::Text => content("stdin", mount),
        MountKind::Collection => match content("stdin", mount)? {
            Content::Collection(part) => Ok(Content::Collection(part)),
            _ => Err(Problem::NotAFile.of("stdin")),
        },
        _ => Err(Problem::Stdin(kind_name(mount)).of("stdin")),
    }
}

/// Path in the output directory to which a stream is written.
fn stream_file(
    stream: &str,
    container: &Container,
    output: &ContainerPath,
    items: &Items,
) -> Result<Option<String>, MountError> {
    let Some(mount) = container.mounts.get(stream) else {
        return Ok(None);
    };
    let outside = || {
        Problem::OutsideOutput {
            path: mount.path.clone(),
            output: output.to_string(),
        }
        .of(stream)
    };
    let path = ContainerPath::parse(&mount.path).map_err(|_| outside())?;
    let Some(relative) = path.below(output).filter(|_| !mount.path.ends_with('/')) else {
        return Err(outside());
    };
    let in_the_way = items.at(&path);
    let covering = items.enclosing(&path).filter(|item| {
        matches!(item.content, Content::File(_))
            || !matches!(item.role, Role::Output | Role::Inside(_))
    });
    if let Some(item) = in_the_way.or(covering) {
        return Err(Problem::Covered {
            path: mount.path.clone(),
            mount: item.target.to_string(),
        }
        .of(stream));
    }
    Ok(Some(relative.to_owned()))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

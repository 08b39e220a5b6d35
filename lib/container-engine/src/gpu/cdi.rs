//! CDI specifications: which device nodes, files, variables and hooks belong to a device, as its
//! vendor describes it.
//!
//! This module reads them itself: the crate for it (container-device-interface 1.1) brings 34
//! others, among them a schema checker with an HTTP client and a C library for cryptography. Only
//! one small document is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::{Hook, HookBuilder, Hooks};
use serde::Deserialize;

use super::{DeviceNode, GpuAccess};
use crate::{Bind, StartError};

/// Maximum number of names in a message.
const MAX_LISTED_NAMES: usize = 16;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: String,
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Edits {
    env: Vec<String>,
    device_nodes: Vec<NodeEdit>,
    mounts: Vec<MountEdit>,
    hooks: Vec<HookEdit>,
    additional_gids: BTreeSet<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeEdit {
    path: PathBuf,
    host_path: Option<PathBuf>,
    r#type: Option<String>,
    major: Option<u32>,
    minor: Option<u32>,
    file_mode: Option<u32>,
    permissions: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MountEdit {
    host_path: PathBuf,
    container_path: PathBuf,
    r#type: Option<String>,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HookEdit {
    hook_name: String,
    path: PathBuf,
    args: Option<Vec<String>>,
    env: Option<Vec<String>>,
    timeout: Option<i64>,
}

/// Position of a device in the specifications.
#[derive(Debug)]
struct DeviceIndex {
    spec: usize,
    device: usize,
    /// Rank of the directory; a higher one wins.
    rank: usize,
    /// Described twice at the same rank.
    is_ambiguous: bool,
}

/// All devices that the specifications on this node describe.
#[derive(Debug, Default)]
pub struct Registry {
    specs: Vec<(PathBuf, Spec)>,
    /// Devices by full name, `vendor/class=device`.
    devices: BTreeMap<String, DeviceIndex>,
    dirs: Vec<PathBuf>,
    /// A sentence for each file that cannot be used.
    problems: Vec<String>,
}

pub fn is_full_name(id: &str) -> bool {
    id.split_once('=')
        .is_some_and(|(kind, name)| kind.contains('/') && !name.is_empty())
}

impl Registry {
    pub fn read(dirs: &[PathBuf]) -> Self {
        let mut registry = Self {
            dirs: dirs.to_vec(),
            ..Self::default()
        };
        for (rank, dir) in dirs.iter().enumerate() {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            files.retain(|file| {
                let extension = file.extension().and_then(|e| e.to_str());
                matches!(extension, Some("json" | "yaml"))
            });
            files.sort();
            for file in files {
                match parse_file(&file) {
                    Ok(spec) => registry.add(file, spec, rank),
                    Err(reason) => registry
                        .problems
                        .push(format!("{} cannot be used: {reason}", file.display())),
                }
            }
        }
        registry
    }

    fn add(&mut self, file: PathBuf, spec: Spec, rank: usize) {
        let number = self.specs.len();
        for (device, describe_devices) in spec.devices.iter().enumerate() {
            let name = format!("{}={}", spec.kind, describe_devices.name);
            let index = DeviceIndex {
                spec: number,
                device,
                rank,
                is_ambiguous: self.devices.get(&name).is_some_and(|p| p.rank == rank),
            };
            self.devices.insert(name, index);
        }
        self.specs.push((file, spec));
    }

    /// Whether there is anything of one of these kinds.
    pub fn describes(&self, kinds: &[&str]) -> bool {
        self.specs
            .iter()
            .any(|(_, spec)| kinds.contains(&spec.kind.as_str()))
    }

    /// Whether there are names and all of them are described.
    pub fn has_all(&self, names: &[String]) -> bool {
        !names.is_empty() && names.iter().all(|name| self.devices.contains_key(name))
    }

    /// The full name of a device by its full name, or by its name (or the only beginning of one)
    /// within a kind.
    pub fn find(&self, id: &str, kinds: &[&str]) -> Option<String> {
        if self.devices.contains_key(id) {
            return Some(id.to_owned());
        }
        let mut names = kinds.iter().map(|kind| format!("{kind}={id}"));
        if let Some(name) = names.find(|name| self.devices.contains_key(name)) {
            return Some(name);
        }
        if !id.starts_with("GPU-") && !id.starts_with("MIG-") {
            return None;
        }
        let starts = |name: &&String| {
            let within = name
                .split_once('=')
                .filter(|(kind, _)| kinds.contains(kind));
            within.is_some_and(|(_, name)| name.starts_with(id))
        };
        let mut found = self.devices.keys().filter(starts);
        let name = found.next()?;
        found.next().is_none().then(|| name.clone())
    }

    /// The device that is the GPU with this node: not a slice of it, which has nodes for that
    /// besides, nor all GPUs.
    pub fn with_node(&self, kinds: &[&str], node: &str) -> Option<String> {
        let fits = |(name, place): &(&String, &DeviceIndex)| {
            let is_of_kind = name
                .split_once('=')
                .is_some_and(|(kind, name)| kinds.contains(&kind) && name != "all");
            let nodes = &self.device(place).container_edits.device_nodes;
            let mut gpus = nodes.iter().filter(|n| is_gpu_or_slice(&n.path));
            let is_it = gpus.next().is_some_and(|n| n.path == Path::new(node));
            is_of_kind && is_it && gpus.next().is_none()
        };
        self.devices.iter().find(fits).map(|(name, _)| name.clone())
    }

    fn device(&self, place: &DeviceIndex) -> &Device {
        &self.specs[place.spec].1.devices[place.device]
    }

    /// The described devices as a list for users; `None` if there are none.
    pub fn describe_devices(&self) -> Option<String> {
        let all = self.devices.len();
        let names = self.devices.keys().map(String::as_str);
        let named: Vec<&str> = names.take(MAX_LISTED_NAMES).collect();
        match all.checked_sub(named.len()) {
            _ if named.is_empty() => None,
            Some(more @ 1..) => Some(format!("{} and {more} more", named.join(", "))),
            _ => Some(named.join(", ")),
        }
    }

    /// Sentences about invalid specifications.
    pub fn problems(&self) -> Vec<String> {
        let ambiguous = self.devices.iter().filter(|(_, place)| place.is_ambiguous);
        let ambiguous = ambiguous.map(|(name, place)| {
            let file = self.specs[place.spec].0.display();
            format!("two CDI specifications describe {name}, one of them {file}")
        });
        self.problems.iter().cloned().chain(ambiguous).collect()
    }

    /// The directories of specifications, for a message.
    pub fn directories(&self) -> String {
        let dirs: Vec<String> = self.dirs.iter().map(|d| d.display().to_string()).collect();
        dirs.join(" and ")
    }

    /// Message for a device that is not described.
    pub fn not_described(&self) -> String {
        let named = self.describe_devices();
        let named = named.unwrap_or_else(|| "no device at all".to_owned());
        let mut text = format!(
            "the CDI specifications of this node (in {}) do not describe it; they describe {named}",
            self.directories()
        );
        for problem in &self.problems {
            text.push_str("; ");
            text.push_str(problem);
        }
        text
    }

    /// Everything that belongs to these devices, which are known full names.
    pub fn access(&self, names: &[String]) -> Result<GpuAccess, StartError> {
        let mut access = GpuAccess::default();
        let mut used = BTreeSet::new();
        for name in names {
            let missing = |reason: String| StartError::gpu_missing(name, reason);
            let index = self.devices.get(name);
            let index = index.ok_or_else(|| missing(self.not_described()))?;
            let (file, spec) = &self.specs[index.spec];
            if index.is_ambiguous {
                return Err(missing(format!(
                    "two CDI specifications describe it, one of them {}",
                    file.display()
                )));
            }
            if !access.cdi_names.contains(name) {
                access.cdi_names.push(name.clone());
                let its = &self.device(index).container_edits;
                let shared = used.insert(index.spec).then_some(&spec.container_edits);
                for edits in shared.into_iter().chain([its]) {
                    apply(&mut access, edits).map_err(|reason| {
                        missing(format!("{reason}, which {} names", file.display()))
                    })?;
                }
            }
        }
        Ok(access)
    }
}

/// `/dev/nvidia7` or something in `/dev/nvidia-caps`, and none of the nodes that all GPUs share.
fn is_gpu_or_slice(path: &Path) -> bool {
    let name = path.to_string_lossy();
    let number = name.strip_prefix("/dev/nvidia").unwrap_or_default();
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number || path.starts_with("/dev/nvidia-caps")
}

fn parse_file(file: &Path) -> Result<Spec, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    parse(&text)
}

/// JSON or YAML, of which JSON is a part.
fn parse(text: &str) -> Result<Spec, String> {
    let spec: Spec = serde_norway::from_str(text).map_err(|error| error.to_string())?;
    if !spec.cdi_version.starts_with("0.") && !spec.cdi_version.starts_with("1.") {
        return Err(format!(
            "it is of version {}, and crunch-run knows 0 and 1",
            spec.cdi_version
        ));
    }
    let is_kind = |kind: &str| {
        let parts = kind.split_once('/');
        parts.is_some_and(|(vendor, class)| !vendor.is_empty() && !class.is_empty())
    };
    if !is_kind(&spec.kind) {
        return Err(format!("its kind \"{}\" is not vendor/class", spec.kind));
    }
    Ok(spec)
}

fn apply(access: &mut GpuAccess, edits: &Edits) -> Result<(), String> {
    for variable in &edits.env {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        access.environment.retain(|(known, _)| known != name);
        access.environment.push((name.to_owned(), value.to_owned()));
    }
    for node in &edits.device_nodes {
        access.add_device(device_node(node)?);
    }
    for mount in &edits.mounts {
        let kind = mount.r#type.as_deref().unwrap_or_default();
        if !matches!(kind, "" | "bind" | "none") {
            access.warnings.push(format!(
                "the {kind} file system that belongs to its GPUs is not mounted at {}",
                mount.container_path.display()
            ));
            continue;
        }
        if let Err(error) = fs::metadata(&mount.host_path) {
            return Err(format!(
                "{} cannot be used on this node ({error})",
                mount.host_path.display()
            ));
        }
        if !access
            .binds
            .iter()
            .any(|b| b.target == mount.container_path)
        {
            access.binds.push(Bind {
                host: mount.host_path.clone(),
                target: mount.container_path.clone(),
                writable: !mount.options.iter().any(|option| option == "ro"),
            });
        }
    }
    for hook in &edits.hooks {
        add_hook(access.hooks.get_or_insert_default(), hook)?;
    }
    access.more_groups.extend(&edits.additional_gids);
    Ok(())
}

fn device_node(edit: &NodeEdit) -> Result<DeviceNode, String> {
    let host = edit.host_path.as_deref().unwrap_or(&edit.path);
    let mut node = DeviceNode::of(host, &edit.path)?;
    let numbers = (
        edit.major.unwrap_or(node.major),
        edit.minor.unwrap_or(node.minor),
    );
    let is_block = match edit.r#type.as_deref() {
        None | Some("") => node.is_block,
        Some("c" | "u") => false,
        Some("b") => true,
        Some(other) => return Err(format!("{} of type \"{other}\"", host.display())),
    };
    if numbers != (node.major, node.minor) || is_block != node.is_block {
        return Err(format!(
            "{} is another device now, {}:{}, than the one",
            host.display(),
            node.major,
            node.minor
        ));
    }
    node.mode = edit.file_mode.map_or(node.mode, |mode| mode & 0o777);
    node.uid = edit.uid.unwrap_or(node.uid);
    node.gid = edit.gid.unwrap_or(node.gid);
    if let Some(access) = edit.permissions.as_ref().filter(|p| !p.is_empty()) {
        node.access = access.clone();
    }
    Ok(node)
}

fn add_hook(hooks: &mut Hooks, edit: &HookEdit) -> Result<(), String> {
    let mut hook = HookBuilder::default().path(edit.path.clone());
    if let Some(arguments) = &edit.args {
        hook = hook.args(arguments.clone());
    }
    if let Some(env) = &edit.env {
        hook = hook.env(env.clone());
    }
    if let Some(seconds) = edit.timeout.filter(|seconds| *seconds > 0) {
        hook = hook.timeout(seconds);
    }
    let hook: Hook = hook.build().map_err(|error| error.to_string())?;
    #[allow(deprecated, reason = "vendors still use them")]
    let list = match edit.hook_name.as_str() {
        "prestart" => hooks.prestart_mut(),
        "createRuntime" => hooks.create_runtime_mut(),
        "createContainer" => hooks.create_container_mut(),
        "startContainer" => hooks.start_container_mut(),
        "poststart" => hooks.poststart_mut(),
        "poststop" => hooks.poststop_mut(),
        other => return Err(format!("a hook \"{other}\" is not known")),
    };
    list.get_or_insert_default().push(hook);
    Ok(())
}

#[cfg(test)]
#[path = "cdi_tests.rs"]
mod tests;

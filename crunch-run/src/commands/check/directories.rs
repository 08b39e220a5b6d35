//! Checks the directories of a node: cache and scratch. Leaves no file in them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use host_state::file::create_new_private;
use host_state::private_dir;
use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use node_cache::Limits;
use preflight::{Finding, Subject};

/// Network file systems by their magic number.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 6] = [
    (0x6969, "NFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00C3_6400, "Ceph"),
    (0xFF53_4D42, "CIFS"),
];
/// Minimum free space for scratch in bytes.
const MIN_SCRATCH_BYTES: u64 = 1 << 30;

/// Properties of a directory, or of its nearest existing ancestor.
#[derive(Debug, Clone)]
struct DirectoryInfo {
    path: PathBuf,
    /// `None` if the path does not exist.
    is_dir: Option<bool>,
    /// Why it is not used as the cache, if it exists.
    not_private: Option<String>,
    owner: u32,
    /// Why no file can be created.
    unwritable: Option<String>,
    read_only: bool,
    no_exec: bool,
    network: Option<&'static str>,
    total: u64,
    free: u64,
    device: u64,
}

/// The directory, or the one above it that exists.
pub(super) fn existing(dir: &Path) -> &Path {
    dir.ancestors()
        .find(|above| above.is_dir())
        .unwrap_or(Path::new("/"))
}

impl DirectoryInfo {
    fn of(path: &Path) -> io::Result<Self> {
        let there = fs::symlink_metadata(path).ok();
        let real = there.as_ref().and_then(|_| fs::metadata(path).ok());
        let base = existing(path);
        let info = fs::metadata(base)?;
        let disk = statvfs(base)?;
        let kind = statfs(base)?.f_type as u32;
        let has = |flag| disk.f_flag.contains(flag);
        Ok(Self {
            path: path.to_owned(),
            is_dir: there.map(|_| real.is_some_and(|info| info.is_dir())),
            not_private: private_dir::check(path)
                .err()
                .map(|error| error.to_string()),
            owner: info.uid(),
            unwritable: test_write(base).err().map(|error| error.to_string()),
            read_only: has(StatVfsMountFlags::RDONLY),
            no_exec: has(StatVfsMountFlags::NOEXEC),
            network: NETWORK_FILE_SYSTEMS
                .iter()
                .find(|(n, _)| *n == kind)
                .map(|(_, name)| *name),
            total: disk.f_blocks.saturating_mul(disk.f_frsize),
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            device: info.dev(),
        })
    }
}

/// Creates a file and removes it.
fn test_write(dir: &Path) -> io::Result<()> {
    let path = dir.join(format!(".crunch-run-check.{:016x}", fastrand::u64(..)));
    create_new_private(&path)?;
    fs::remove_file(path)
}

pub fn run(cache: &Path, limits: Limits, scratch: &Path) -> Vec<Finding> {
    let uid = rustix::process::geteuid().as_raw();
    let info = |path: &Path, flag: &str, evaluate: &dyn Fn(&DirectoryInfo) -> Finding| {
        match DirectoryInfo::of(path) {
            Ok(info) => evaluate(&info),
            Err(error) => Finding::fail(
                flag.trim_start_matches('-').to_owned(),
                format!("{}: {error}", path.display()),
                format!("name another with {flag}"),
            ),
        }
    };
    let scratch_device = DirectoryInfo::of(scratch).ok().map(|info| info.device);
    vec![
        info(cache, "--cache-dir", &|info| {
            evaluate_cache(info, limits, uid, scratch_device)
        }),
        info(scratch, "--scratch-dir", &evaluate_scratch),
    ]
}

/// Returns a failure if the directory is unusable for any purpose.
fn unusable(what: Subject, info: &DirectoryInfo) -> Option<Finding> {
    let path = info.path.display();
    let other = format!("fix that, or name another directory with --{}", what.0);
    if info.is_dir == Some(false) {
        return Some(what.fail(
            format!("{path} is not a directory, or is a dangling link"),
            other,
        ));
    }
    let reason = match &info.unwritable {
        Some(_) if info.read_only => "its file system is mounted read-only".to_owned(),
        Some(error) => format!("nothing can be written there: {error}"),
        None => return None,
    };
    Some(what.fail(format!("{path}: {reason}"), other))
}

fn evaluate_cache(info: &DirectoryInfo, limits: Limits, uid: u32, scratch: Option<u64>) -> Finding {
    let what = Subject("cache");
    if let Some(finding) = unusable(what, info) {
        return finding;
    }
    let path = info.path.display();
    // A missing directory will be created with mode 700.
    if info.is_dir.is_some()
        && let Some(reason) = &info.not_private
    {
        return what.fail(
            format!(
                "{reason} ({path} is {}'s): others could store images in it",
                name_of(info.owner)
            ),
            format!("chown {uid} {path} && chmod 700 {path}, or name another with --cache-dir"),
        );
    }
    if let Some(kind) = info.network {
        return what.warn(
            format!("{path} is on {kind}, which all nodes would share and wait for"),
            "name a directory on a disk of the node with --cache-dir",
        );
    }
    let (free, least) = (ByteSize(info.free), limits.free.of(info.total));
    if info.free <= least {
        return what.warn(
            format!(
                "{path} has {free} free, and --cache-free keeps {} free, so that nothing is cached",
                ByteSize(least)
            ),
            "make room: crunch-run cache gc, or what else fills it",
        );
    }
    let mut finding = format!(
        "{path}{}, {free} free, may take {}",
        creation_note(info),
        ByteSize(limits.size.of(info.total))
    );
    if let Some(device) = scratch {
        let same = match device == info.device {
            true => "the same file system as",
            false => "another file system than",
        };
        finding.push_str(&format!(", on {same} scratch"));
    }
    what.ok(finding)
}

/// Name of a user.
fn name_of(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

fn evaluate_scratch(info: &DirectoryInfo) -> Finding {
    let what = Subject("scratch");
    if let Some(finding) = unusable(what, info) {
        return finding;
    }
    let path = info.path.display();
    let another = "name another directory with --scratch-dir, on a disk of the node";
    if info.no_exec {
        return what.fail(
            format!("{path} is mounted noexec, so that no program of a container can run from it"),
            another,
        );
    }
    if let Some(kind) = info.network {
        return what.warn(
            format!("{path} is on {kind}, which cannot hold a container's own layer"),
            another,
        );
    }
    let free = ByteSize(info.free);
    if info.free < MIN_SCRATCH_BYTES {
        return what.warn(
            format!("{path} has {free} free"),
            format!("free some space, or {another}"),
        );
    }
    what.ok(format!("{path}{}, {free} free", creation_note(info)))
}

fn creation_note(info: &DirectoryInfo) -> &'static str {
    match info.is_dir {
        Some(_) => "",
        None => " (will be made)",
    }
}

#[cfg(test)]
#[path = "directories_tests.rs"]
mod tests;

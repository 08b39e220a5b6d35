//! The directories of a node that containers need: its cache, and where scratch goes. Nothing is left in them.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use super::finding::Finding;
use crate::cache::Limits;

/// File systems over a network, by the number that the kernel knows them by.
const NETWORK: [(u32, &str); 6] = [
    (0x6969, "NFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00C3_6400, "Ceph"),
    (0xFF53_4D42, "CIFS"),
];
/// Less free than this is no place for inputs and outputs.
const LITTLE: u64 = 1 << 30;

/// What a directory is, or the nearest one above it that exists.
#[derive(Debug, Clone)]
struct Facts {
    path: PathBuf,
    /// `None` if there is nothing yet.
    is_dir: Option<bool>,
    owner: u32,
    mode: u32,
    /// Why no file can be made there.
    unwritable: Option<String>,
    read_only: bool,
    no_exec: bool,
    network: Option<&'static str>,
    total: u64,
    free: u64,
    device: u64,
}

impl Facts {
    fn of(path: &Path) -> io::Result<Self> {
        let there = fs::symlink_metadata(path).ok();
        let real = match &there {
            Some(_) => fs::metadata(path).ok(),
            None => None,
        };
        let base = path
            .ancestors()
            .find(|dir| dir.is_dir())
            .unwrap_or(Path::new("/"));
        let facts = fs::metadata(base)?;
        let disk = statvfs(base)?;
        let kind = statfs(base)?.f_type as u32;
        let has = |flag| disk.f_flag.contains(flag);
        Ok(Self {
            path: path.to_owned(),
            is_dir: there.map(|_| real.is_some_and(|facts| facts.is_dir())),
            owner: facts.uid(),
            mode: facts.mode(),
            unwritable: write_there(base).err().map(|error| error.to_string()),
            read_only: has(StatVfsMountFlags::RDONLY),
            no_exec: has(StatVfsMountFlags::NOEXEC),
            network: NETWORK
                .iter()
                .find(|(n, _)| *n == kind)
                .map(|(_, name)| *name),
            total: disk.f_blocks.saturating_mul(disk.f_frsize),
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            device: facts.dev(),
        })
    }
}

/// Makes a file and removes it.
fn write_there(dir: &Path) -> io::Result<()> {
    let path = dir.join(format!(".crunch-run-check.{:016x}", fastrand::u64(..)));
    fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&path)?;
    fs::remove_file(path)
}

pub fn look(cache: &Path, limits: Limits, scratch: &Path) -> Vec<Finding> {
    let uid = rustix::process::geteuid().as_raw();
    let facts = |path: &Path, flag: &str, judge: &dyn Fn(&Facts) -> Finding| match Facts::of(path) {
        Ok(facts) => judge(&facts),
        Err(error) => Finding::fail(
            flag.trim_start_matches('-').to_owned(),
            format!("{}: {error}", path.display()),
            format!("name another with {flag}"),
        ),
    };
    let scratch_device = Facts::of(scratch).ok().map(|facts| facts.device);
    vec![
        facts(cache, "--cache", &|facts| {
            judge_cache(facts, limits, uid, scratch_device)
        }),
        facts(scratch, "--scratch", &judge_scratch),
    ]
}

/// What makes a directory useless, whatever it is for.
fn useless(what: &str, facts: &Facts) -> Option<Finding> {
    let place = facts.path.display();
    let other = format!("mend that, or name another directory with --{what}");
    if facts.is_dir == Some(false) {
        return Some(Finding::fail(
            what,
            format!("{place} is no directory, or a link to nowhere"),
            other,
        ));
    }
    let reason = match &facts.unwritable {
        Some(_) if facts.read_only => "its file system is mounted read-only".to_owned(),
        Some(error) => format!("nothing can be written there: {error}"),
        None => return None,
    };
    Some(Finding::fail(what, format!("{place}: {reason}"), other))
}

fn judge_cache(facts: &Facts, limits: Limits, uid: u32, scratch: Option<u64>) -> Finding {
    let what = "cache";
    if let Some(finding) = useless(what, facts) {
        return finding;
    }
    let place = facts.path.display();
    // One that does not exist yet will be made private.
    if facts.is_dir.is_some() && (facts.owner != uid || facts.mode & 0o022 != 0) {
        return Finding::fail(
            what,
            format!(
                "{place} belongs to uid {} with mode {:o}: others could put images into it",
                facts.owner,
                facts.mode & 0o7777
            ),
            format!("chown {uid} {place} && chmod 700 {place}"),
        );
    }
    if let Some(kind) = facts.network {
        return Finding::warn(
            what,
            format!("{place} is on {kind}, which all nodes would share and wait for"),
            "name a directory on a disk of the node with --cache",
        );
    }
    let (free, least) = (ByteSize(facts.free), limits.free.of(facts.total));
    if facts.free <= least {
        return Finding::warn(
            what,
            format!(
                "{place} has {free} free, and {} are to stay free (--cache-free), so that nothing is kept",
                ByteSize(least)
            ),
            "make room: crunch-run cache gc, or what else fills it",
        );
    }
    let mut finding = format!(
        "{place}{}, {free} free, may take {}",
        not_yet(facts),
        ByteSize(limits.size.of(facts.total))
    );
    if let Some(device) = scratch {
        let same = match device == facts.device {
            true => "the same file system as",
            false => "another file system than",
        };
        finding.push_str(&format!(", on {same} scratch"));
    }
    Finding::ok(what, finding)
}

fn judge_scratch(facts: &Facts) -> Finding {
    let what = "scratch";
    if let Some(finding) = useless(what, facts) {
        return finding;
    }
    let place = facts.path.display();
    let another = "name another directory with --scratch, on a disk of the node";
    if facts.no_exec {
        return Finding::fail(
            what,
            format!("{place} is mounted noexec, so that no program of a container can run from it"),
            another,
        );
    }
    if let Some(kind) = facts.network {
        return Finding::warn(
            what,
            format!("{place} is on {kind}, which cannot hold a container's own layer"),
            another,
        );
    }
    let free = ByteSize(facts.free);
    if facts.free < LITTLE {
        return Finding::warn(
            what,
            format!("{place} has {free} free"),
            format!("make room, or {another}"),
        );
    }
    Finding::ok(what, format!("{place}{}, {free} free", not_yet(facts)))
}

fn not_yet(facts: &Facts) -> &'static str {
    match facts.is_dir {
        Some(_) => "",
        None => " (will be made)",
    }
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;

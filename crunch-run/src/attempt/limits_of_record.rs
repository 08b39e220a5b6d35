//! Usage limits of one container, from its record and the site's flags.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use arvados_client::records::{Container, MountKind};

use super::settings::SiteLimits;
use crate::inputs::{ContainerPath, Staged};
use crate::limits::{DirectoryLimit, LimitExceeded, Measure, Resource, UsageMonitor};

/// What a container may write in addition to the capacities of its `tmp` mounts, in bytes: caches
/// and temporary files that few requests account for.
const ROOT_ALLOWANCE_BYTES: u64 = 256 << 20;

/// Space for which a container may make a file, in bytes. File systems have inodes for a file in
/// 16 KiB.
const BYTES_PER_FILE: u64 = 4096;

/// `memory` is the memory limit in bytes, and whether nothing else enforces it.
pub fn usage_limits(
    record: &Container,
    site: &SiteLimits,
    (memory, watches_memory): (Option<u64>, bool),
    scratch: &Path,
    writable_layers: &[PathBuf],
    staged: &Staged,
) -> UsageMonitor {
    let disk = |dir: &Path, measure, resource, allowed| DirectoryLimit {
        dir: dir.to_owned(),
        measure,
        resource,
        allowed,
    };
    // Limits on the same directory are adjacent, so that one walk serves all of them.
    let mut disks = Vec::new();
    disks.extend(
        site.scratch
            .map(|bytes| disk(scratch, Measure::Bytes, Resource::ScratchBytes, bytes)),
    );
    disks.extend(
        site.scratch_files
            .map(|files| disk(scratch, Measure::Files, Resource::ScratchFiles, files)),
    );
    let capacities: HashMap<ContainerPath, u64> = record
        .mounts
        .iter()
        .filter(|(_, mount)| mount.kind == MountKind::Tmp && mount.capacity > 0)
        .filter_map(|(target, mount)| Some((ContainerPath::parse(target).ok()?, mount.capacity)))
        .collect();
    for bind in &staged.binds {
        let target = bind.target.to_string_lossy();
        let path = ContainerPath::parse(&target).ok();
        if let Some(capacity) = path.and_then(|path| capacities.get(&path)) {
            let resource = Resource::MountBytes(target.into_owned());
            disks.push(disk(&bind.host, Measure::Bytes, resource, *capacity));
        }
    }
    disks.extend(output_limit(site.output, staged));
    // A mount without capacity has no limit, so the sum has none either.
    let mut writable = record.mounts.values().filter(|m| m.kind == MountKind::Tmp);
    let is_limited = !capacities.is_empty() && writable.all(|mount| mount.capacity > 0);
    let requested = capacities.values().copied().fold(0, u64::saturating_add);
    let requested_scratch = is_limited.then(|| requested.saturating_add(ROOT_ALLOWANCE_BYTES));
    // Those in scratch are measured with it.
    let layers_outside_scratch = writable_layers
        .iter()
        .filter(|dir| !dir.starts_with(scratch));
    UsageMonitor {
        requested_scratch,
        layers_outside_scratch: layers_outside_scratch.cloned().collect(),
        // A site's own limit holds instead.
        requested_files: requested_scratch
            .filter(|_| site.scratch_files.is_none())
            .map(|bytes| bytes / BYTES_PER_FILE),
        at_start: OnceLock::new(),
        cpu_time: site.cpu_time,
        memory,
        watches_memory,
        disks,
        scratch: scratch.to_owned(),
        peak_scratch: AtomicU64::new(0),
    }
}

/// Limit on the output.
fn output_limit(allowed: Option<u64>, staged: &Staged) -> Option<DirectoryLimit> {
    allowed.map(|allowed| DirectoryLimit {
        dir: staged.output_dir.clone(),
        measure: Measure::Length,
        resource: Resource::OutputBytes,
        allowed,
    })
}

/// Measures the output once more before it is saved: a command may write much just before its end.
pub async fn output_limit_exceeded(allowed: Option<u64>, staged: &Staged) -> Option<LimitExceeded> {
    let limit = output_limit(allowed, staged)?;
    let measurement = tokio::task::spawn_blocking(move || limit.exceeded(&[]));
    measurement.await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use arvados_client::{Client, Endpoint, Token};
    use serde_json::json;

    use super::*;
    use crate::inputs::PersistedMounts;
    use container_engine::Bind;

    #[test]
    fn a_capacity_holds_however_its_path_is_spelt() {
        let record: Container = serde_json::from_value(json!({
            "uuid": "zzzzz-dz642-0123456789abcde",
            "mounts": {
                "/out": {"kind": "tmp", "capacity": 1},
                "/tmp/": {"kind": "tmp", "capacity": 2},
                "/var//./x": {"kind": "tmp", "capacity": 3},
                "/text": {"kind": "text", "content": "", "capacity": 4},
                "stdout": {"kind": "file", "path": "/out/x"},
            },
        }))
        .unwrap();
        let noted = json!({"output_path": "/out", "output_dir": "out", "mounts": []});
        let noted: PersistedMounts = serde_json::from_value(noted).unwrap();
        let client = Client::new(Endpoint::new("localhost:1", Token::new("unused")).unwrap());
        let mut staged = noted.restore(Path::new("/s"), client.unwrap()).unwrap();
        staged.binds = ["/out", "/tmp", "/var/x", "/text"]
            .map(|target| Bind {
                host: Path::new("/s").join(&target[1..]),
                target: target.into(),
                writable: true,
            })
            .to_vec();
        let site = SiteLimits::default();
        let usage_limits =
            usage_limits(&record, &site, (None, false), Path::new("/s"), &[], &staged);
        let found: Vec<(&Path, u64)> = usage_limits
            .disks
            .iter()
            .map(|disk| (disk.dir.as_path(), disk.allowed))
            .collect();
        let expected = [("/s/out", 1), ("/s/tmp", 2), ("/s/var/x", 3)];
        assert_eq!(found, expected.map(|(dir, most)| (Path::new(dir), most)));
        assert_eq!(
            usage_limits.requested_scratch,
            Some(6 + ROOT_ALLOWANCE_BYTES)
        );
    }
}

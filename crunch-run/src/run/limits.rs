//! What one container may use: by its record, and by what the site allows.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use arvados_client::records::{Container, MountKind};

use super::settings::SiteLimits;
use crate::limits::{Allowance, DiskAllowance, Measure, Overrun, Resource};
use crate::mounts::{ContainerPath, Staged};

/// `memory` is the limit that the kernel keeps.
pub fn allowance(
    record: &Container,
    site: &SiteLimits,
    memory: Option<u64>,
    scratch: &Path,
    staged: &Staged,
) -> Allowance {
    let disk = |dir: &Path, measure, resource, allowed| DiskAllowance {
        dir: dir.to_owned(),
        measure,
        resource,
        allowed,
    };
    // Limits on one directory are neighbours, so that it is walked once for all of them.
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
    Allowance {
        cpu_time: site.cpu_time,
        memory,
        disks,
        scratch: scratch.to_owned(),
        peak_scratch: AtomicU64::new(0),
    }
}

/// The limit on the output, in bytes.
fn output_limit(allowed: Option<u64>, staged: &Staged) -> Option<DiskAllowance> {
    allowed.map(|allowed| DiskAllowance {
        dir: staged.output_dir.clone(),
        measure: Measure::Length,
        resource: Resource::OutputBytes,
        allowed,
    })
}

/// One look more before the output is saved: a command may have written much just before its end.
pub async fn output_overrun(allowed: Option<u64>, staged: &Staged) -> Option<Overrun> {
    let limit = output_limit(allowed, staged)?;
    let look = tokio::task::spawn_blocking(move || limit.overrun());
    look.await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use arvados_client::{Client, Endpoint, Token};
    use serde_json::json;

    use super::*;
    use crate::engine::Bind;
    use crate::mounts::NotedMounts;

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
        let noted: NotedMounts = serde_json::from_value(noted).unwrap();
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
        let allowance = allowance(&record, &site, None, Path::new("/s"), &staged);
        let found: Vec<(&Path, u64)> = allowance
            .disks
            .iter()
            .map(|disk| (disk.dir.as_path(), disk.allowed))
            .collect();
        let expected = [("/s/out", 1), ("/s/tmp", 2), ("/s/var/x", 3)];
        assert_eq!(found, expected.map(|(dir, most)| (Path::new(dir), most)));
    }
}

//! What one container may use: by its record, and by what the site allows. Pure.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use arvados_client::records::{Container, MountKind};

use super::settings::SiteLimits;
use crate::limits::{Allowance, DiskAllowance, Measure, Resource};
use crate::mounts::Staged;

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
    for bind in &staged.binds {
        let target = bind.target.to_string_lossy();
        let mount = record.mounts.get(target.as_ref());
        if let Some(mount) = mount.filter(|m| m.kind == MountKind::Tmp && m.capacity > 0) {
            let resource = Resource::MountBytes(target.into_owned());
            disks.push(disk(&bind.host, Measure::Bytes, resource, mount.capacity));
        }
    }
    disks.extend(output_limit(site, staged));
    Allowance {
        cpu_time: site.cpu_time,
        memory,
        disks,
        scratch: scratch.to_owned(),
        peak_scratch: AtomicU64::new(0),
    }
}

/// The one that is looked at once more before the output is saved.
pub fn output_limit(site: &SiteLimits, staged: &Staged) -> Option<DiskAllowance> {
    site.output.map(|allowed| DiskAllowance {
        dir: staged.output_dir.clone(),
        measure: Measure::Length,
        resource: Resource::OutputBytes,
        allowed,
    })
}

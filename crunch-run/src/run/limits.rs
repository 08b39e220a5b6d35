//! What one container may use: by its record, and by what the site allows.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use arvados_client::records::{Container, MountKind};

use super::settings::SiteLimits;
use crate::limits::{Allowance, DiskAllowance, Measure, Overrun, Resource};
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

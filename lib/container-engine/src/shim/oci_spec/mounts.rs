//! Mounts of the container: the kernel's file systems as in Docker, and the requested binds.

use std::path::Path;

use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{Mount, MountBuilder};
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::SpecInput;
use crate::{Bind, Network};
use cgroup::Cgroup;

pub fn mounts(input: &SpecInput<'_>) -> Result<Vec<Mount>, OciSpecError> {
    let mount = |destination: &str, typ: &str, options: &[&str]| {
        MountBuilder::default()
            .destination(destination)
            .typ(typ)
            .source(typ)
            .options(options.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>())
            .build()
    };
    // Docker's default of 64 MiB is too small for programs that share data between processes. Used
    // pages count against the memory limit anyway.
    let shm_size = input
        .limits
        .memory_bytes
        .map(|bytes| format!("size={bytes}"));
    let mut shm = vec!["nosuid", "noexec", "nodev", "mode=1777"];
    shm.extend(shm_size.as_deref());

    let mut terminals = vec![
        "nosuid",
        "noexec",
        "newinstance",
        "ptmxmode=0666",
        "mode=0620",
    ];
    if input.unprivileged.is_none() {
        terminals.push("gid=5");
    }
    let quiet = ["nosuid", "noexec", "nodev"];
    let sys = Path::new("/sys");
    let system = match (input.own_users, input.unprivileged, input.network) {
        // The kernel mounts a new sysfs only for the owner of the network namespace.
        (Some(users), _, _) => bind_mount(users.sysfs, sys, "ro", &quiet)?,
        (None, Some(_), Network::Host) => bind_mount(sys, sys, "ro", &quiet)?,
        _ => mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"])?,
    };

    let mut mounts = vec![
        mount("/proc", "proc", &quiet)?,
        mount(
            "/dev",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        )?,
        mount("/dev/pts", "devpts", &terminals)?,
        system,
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"])?,
        mount("/dev/shm", "tmpfs", &shm)?,
    ];
    match input.unprivileged {
        None => mounts.extend(group_mounts(input.group)?),
        // No device nodes can be made, so the node's own are bound.
        Some(_) => {
            for node in &input.gpus.devices {
                mounts.push(bind_mount(
                    &node.host,
                    &node.path,
                    "rw",
                    &["nosuid", "noexec"],
                )?);
            }
        }
    }

    let mut binds: Vec<&Bind> = input.binds.iter().collect();
    // Outer mounts come before those inside them.
    binds.sort_by_key(|bind| bind.target.components().count());
    for bind in binds {
        let mut access = if bind.writable { "rw" } else { "ro" };
        let mut more = vec!["nodev"];
        if input.own_users.is_some() {
            let set = statvfs(&bind.host).map_or(StatVfsMountFlags::empty(), |facts| facts.f_flag);
            if set.contains(StatVfsMountFlags::RDONLY) {
                access = "ro";
            }
            more.extend(options_to_keep(set));
        }
        mounts.push(bind_mount(&bind.host, &bind.target, access, &more)?);
    }
    Ok(mounts)
}

/// Options of a mount that cannot be removed in a user namespace (mount_namespaces(7)). runc asks
/// for exactly those that it is told.
fn options_to_keep(set: StatVfsMountFlags) -> impl Iterator<Item = &'static str> {
    let options = [
        (StatVfsMountFlags::NOSUID, "nosuid"),
        (StatVfsMountFlags::NOEXEC, "noexec"),
    ];
    let kept = options
        .into_iter()
        .filter(move |(flag, _)| set.contains(*flag));
    kept.map(|(_, option)| option)
}

/// The container's control group, read-only: many programs read their limits there.
fn group_mounts(group: &Cgroup) -> Result<Vec<Mount>, OciSpecError> {
    let quiet = ["nosuid", "noexec", "nodev"];
    let here = Path::new("/sys/fs/cgroup");
    if let Some(dir) = &group.v2 {
        return Ok(vec![bind_mount(dir, here, "ro", &quiet)?]);
    }
    let mut mounts = vec![
        MountBuilder::default()
            .destination(here)
            .typ("tmpfs")
            .source("tmpfs")
            .options(
                ["nosuid", "noexec", "nodev", "mode=755", "size=64k"]
                    .map(str::to_owned)
                    .to_vec(),
            )
            .build()?,
    ];
    for (controller, dir) in &group.v1 {
        mounts.push(bind_mount(dir, &here.join(controller), "ro", &quiet)?);
    }
    Ok(mounts)
}

fn bind_mount(
    host: &Path,
    target: &Path,
    access: &str,
    more: &[&str],
) -> Result<Mount, OciSpecError> {
    let mut options = vec!["rbind", "rprivate", access];
    options.extend(more);
    MountBuilder::default()
        .destination(target)
        .typ("bind")
        .source(host)
        .options(options.into_iter().map(str::to_owned).collect::<Vec<_>>())
        .build()
}

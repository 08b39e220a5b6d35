//! Apptainer shows a device in a container only at its path in /dev. For a node with another path,
//! the shim mounts a /dev of its own in which the node has the wanted path.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive, mount_move};

use crate::StartError;
use crate::error::cannot_create;
use crate::gpu::DeviceNode;

/// `aside` is a directory of this container alone.
pub fn move_nodes(devices: &[DeviceNode], aside: &Path) -> Result<(), StartError> {
    if devices.iter().all(|node| node.host == node.path) {
        return Ok(());
    }
    make(devices, aside).map_err(|error| cannot_create("its /dev", error))
}

fn make(devices: &[DeviceNode], aside: &Path) -> io::Result<()> {
    let new = aside.join("dev");
    fs::create_dir(&new)?;
    mount("tmpfs", &new, "tmpfs", MountFlags::NOSUID, c"mode=755")?;
    fill(Path::new("/dev"), &new, devices)?;
    for node in devices {
        let below = node
            .path
            .strip_prefix("/dev")
            .map_err(|_| io::Error::other(format!("{} is not below /dev", node.path.display())))?;
        let to = new.join(below);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        File::create(&to)?;
        mount_bind(&node.host, &to)?;
    }
    mount_move(&new, "/dev")?;
    fs::remove_dir(&new)
}

/// Copies the entries of `from` by binds. A directory that gets a device is created anew, so that
/// nothing is created in the node's /dev.
fn fill(from: &Path, to: &Path, devices: &[DeviceNode]) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if devices.iter().any(|node| node.path == from) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else if !kind.is_dir() {
            File::create(&to)?;
            mount_bind(&from, &to)?;
        } else {
            fs::create_dir(&to)?;
            match devices.iter().any(|node| node.path.starts_with(&from)) {
                true => fill(&from, &to, devices)?,
                false => mount_bind_recursive(&from, &to)?,
            }
        }
    }
    Ok(())
}

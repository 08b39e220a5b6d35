//! Apptainer puts a device into a container only at the path it has in /dev. For a node of another path the keeper, in
//! its own view of mounts, gets a /dev in which that node is where it should be.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive, mount_move};

use crate::engine::StartError;
use crate::engine::gpu::DeviceNode;
use crate::engine::kept::scene::runtime;

/// `aside`: a directory of this container alone.
pub fn move_nodes(devices: &[DeviceNode], aside: &Path) -> Result<(), StartError> {
    if devices.iter().all(|node| node.host == node.path) {
        return Ok(());
    }
    make(devices, aside).map_err(|error| runtime("its /dev", error))
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

/// With what is in `from`. A directory that gets one of the nodes is made anew: nothing is created in the node's own.
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

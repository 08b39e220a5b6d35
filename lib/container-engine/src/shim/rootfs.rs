//! The container's root file system: an overlay of the image's layers and a writable directory.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use host_state::file::create_private_dir;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};

use super::flatten::flatten;
use super::mapped_mounts::MappedMounts;
use crate::StartError;

/// Directory with what the container writes into its root.
pub const WRITABLE_LAYER: &str = "upper";

/// A mounted root file system.
#[derive(Debug)]
pub struct RootFs {
    pub path: PathBuf,
    /// Directory outside the attempt's own that is removed at the end.
    pub elsewhere: Option<PathBuf>,
}

/// Mounts the layers (lowest first) at `dir/rootfs`, for this process's mount namespace only. If
/// the file system of `dir` does not support a writable layer, `spare` is used for it. If that does
/// not support it either, the layers are copied.
///
/// In a user namespace overlayfs may only use attributes that every user may set.
pub fn mount_layers(
    layers: &[PathBuf],
    dir: &Path,
    spare: &Path,
    privileged: bool,
) -> Result<RootFs, StartError> {
    let failed = |reason: String| StartError::RootFs { reason };
    let target = dir.join("rootfs");
    create_private_dir(&target)
        .map_err(|e| failed(format!("{} cannot be made: {e}", target.display())))?;
    let [first, second] = match overlay_in_either(layers, [dir, spare], &target, privileged) {
        Ok(root) => return Ok(root),
        Err(errors) => errors,
    };
    flatten(layers, &target)
        .and_then(|()| match privileged {
            true => without_devices(&target),
            // An ordinary user cannot have created device nodes in the copy.
            false => Ok(()),
        })
        .map_err(|third| {
            failed(format!(
                "not with the writable layer in {} ({first}), not with it in {} ({second}), and not as a copy ({third})",
                dir.display(),
                spare.display()
            ))
        })?;
    Ok(RootFs {
        path: target,
        elsewhere: None,
    })
}

/// Mounts the layers with the owners that they have by `mapped`; there are no copies of such.
pub fn mount_mapped_layers(
    mapped: &MappedMounts,
    dir: &Path,
    spare: &Path,
) -> Result<RootFs, String> {
    let target = mapped.mount_point("rootfs");
    create_private_dir(&target).map_err(|error| error.to_string())?;
    let overlaid = overlay_in_either(&mapped.layers, [dir, spare], &target, true);
    overlaid.map_err(|[first, second]| {
        format!("overlayfs does not take layers with mapped owners ({first}; {second})")
    })
}

/// With the writable layer in the first of two directories that can have it.
fn overlay_in_either(
    layers: &[PathBuf],
    [dir, spare]: [&Path; 2],
    target: &Path,
    privileged: bool,
) -> Result<RootFs, [io::Error; 2]> {
    let root = |elsewhere| RootFs {
        path: target.to_owned(),
        elsewhere,
    };
    let first = match overlay(layers, dir, target, privileged) {
        Ok(()) => return Ok(root(None)),
        Err(error) => error,
    };
    let second = create_private_dir(spare);
    match second.and_then(|()| overlay(layers, spare, target, privileged)) {
        Ok(()) => Ok(root(Some(spare.to_owned()))),
        Err(second) => {
            let _ = fs::remove_dir_all(spare);
            Err([first, second])
        }
    }
}

impl RootFs {
    pub fn unmount(&self) -> io::Result<()> {
        match unmount(&self.path, UnmountFlags::DETACH) {
            // Nothing was mounted.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn overlay(layers: &[PathBuf], work: &Path, target: &Path, privileged: bool) -> io::Result<()> {
    let (upper, scratch, names) = (work.join(WRITABLE_LAYER), work.join("work"), work.join("l"));
    for dir in [&upper, &scratch, &names] {
        create_private_dir(dir)?;
    }
    // Short relative names, because the kernel accepts one page of options, and ':' and ',' are
    // separators.
    let empty = work.join("empty");
    let layers = if layers.is_empty() {
        create_private_dir(&empty)?;
        std::slice::from_ref(&empty)
    } else {
        layers
    };
    let lower = link_layers(layers, &names)?;

    // The container's root directory has the owner and mode of the writable layer's.
    if let Some(top) = layers.last() {
        let like = fs::metadata(top)?;
        std::os::unix::fs::chown(&upper, Some(like.uid()), Some(like.gid()))?;
        fs::set_permissions(&upper, fs::Permissions::from_mode(like.mode() & 0o7777))?;
    }

    let before = std::env::current_dir()?;
    std::env::set_current_dir(&names)?;
    let mounted = mount_overlay(&lower.join(":"), target, privileged);
    std::env::set_current_dir(before)?;
    mounted
}

/// Makes a link to each layer, and returns their names in the order that the kernel expects: the
/// topmost first. An earlier attempt may have left links to other mounts.
fn link_layers(layers: &[PathBuf], names: &Path) -> io::Result<Vec<String>> {
    fs::remove_dir_all(names)?;
    create_private_dir(names)?;
    let link = |(number, layer): (usize, &PathBuf)| {
        let name = number.to_string();
        symlink(layer, names.join(&name)).map(|()| name)
    };
    layers.iter().enumerate().rev().map(link).collect()
}

fn mount_overlay(lower: &str, target: &Path, privileged: bool) -> io::Result<()> {
    let attributes = if privileged { "" } else { ",userxattr" };
    let mut result = Ok(());
    // The writable layer is useless after a crash, so it need not be synced ("volatile"). Older
    // kernels do not support that option.
    for extra in [",volatile", ""] {
        let options =
            format!("lowerdir={lower},upperdir=../upper,workdir=../work{attributes}{extra}");
        let options = CString::new(options)?;
        // Device nodes come from /dev only, never from an image.
        result = mount("overlay", target, "overlay", MountFlags::NODEV, &*options);
        if result.is_ok() {
            break;
        }
    }
    Ok(result?)
}

fn without_devices(dir: &Path) -> io::Result<()> {
    mount_bind(dir, dir)?;
    mount_remount(dir, MountFlags::BIND | MountFlags::NODEV, "")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_attempt_has_its_own_layers() {
        let dir = tempfile::tempdir().unwrap();
        let names = dir.path().join("l");
        create_private_dir(&names).unwrap();
        for layers in [["/mapped/a", "/mapped/b"], ["/plain/a", "/plain/b"]] {
            let layers = layers.map(PathBuf::from);
            assert_eq!(link_layers(&layers, &names).unwrap(), ["1", "0"]);
            for (number, layer) in layers.iter().enumerate() {
                let link = names.join(number.to_string());
                assert_eq!(fs::read_link(link).unwrap(), *layer);
            }
        }
    }
}

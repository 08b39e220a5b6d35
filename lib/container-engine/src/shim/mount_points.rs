//! Checks that an image has room for the mounts of its container. Runtimes fail at a mount point
//! that leads nowhere without naming it.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::libc::{ELOOP, ENOENT, ENOTDIR};
use pathrs::Root;
use pathrs::error::ErrorKind;

use crate::{Bind, StartError};

/// Directories that get a file system of the kernel.
const SYSTEM: [&str; 3] = ["/proc", "/dev", "/sys"];

/// Errors of a lookup that are the fault of the image.
const IMAGE_FAULTS: [i32; 3] = [ENOENT, ENOTDIR, ELOOP];

/// Checks the mount points in the root file system `root`. What does not exist is made later.
pub fn check(root: &Path, binds: &[Bind]) -> Result<(), StartError> {
    // Without it no mount point can be looked up, and the runtime says why.
    let Ok(root) = Root::open(root) else {
        return Ok(());
    };
    for target in SYSTEM {
        check_one(&root, Path::new(target), true)?;
    }
    for bind in binds {
        let covered = SYSTEM
            .iter()
            .map(Path::new)
            .chain(binds.iter().map(|other| other.target.as_path()))
            .any(|other| bind.target != other && bind.target.starts_with(other));
        // What is below another mount is not in the image.
        if !covered {
            check_one(&root, &bind.target, bind.host.is_dir())?;
        }
    }
    Ok(())
}

fn check_one(root: &Root, target: &Path, is_dir: bool) -> Result<(), StartError> {
    let mut outer: Vec<&Path> = target.ancestors().collect();
    outer.reverse();
    for path in outer.into_iter().skip(1) {
        if root.resolve_nofollow(path).is_err() {
            return Ok(());
        }
        let bad = |reason: &str| StartError::BadMountPoint {
            target: target.to_owned(),
            place: path.to_owned(),
            reason: reason.to_owned(),
        };
        let place = match root.resolve(path) {
            Ok(place) => place,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::OsError(Some(errno)) if IMAGE_FAULTS.contains(&errno) => {
                        Err(bad("is a link that leads nowhere"))
                    }
                    // An error of the node, which the runtime meets and tells.
                    _ => Ok(()),
                };
            }
        };
        let is_inner = path != target;
        match (is_dir_handle(&place), is_inner || is_dir) {
            (false, true) => return Err(bad("is not a directory")),
            (true, false) => return Err(bad("is a directory, and the mount is a file")),
            _ => {}
        }
    }
    Ok(())
}

fn is_dir_handle(handle: &impl AsFd) -> bool {
    let file = handle.as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| file.metadata())
        .is_ok_and(|facts| facts.is_dir())
}

/// The mount points of a container, for an error whose text does not name one.
pub fn list(binds: &[Bind]) -> String {
    let targets: Vec<String> = SYSTEM
        .iter()
        .map(PathBuf::from)
        .chain(binds.iter().map(|bind| bind.target.clone()))
        .map(|target| target.display().to_string())
        .collect();
    targets.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_mount_point_that_leads_nowhere_is_named() {
        let bind = |target: &str| Bind {
            host: "/".into(),
            target: target.into(),
            writable: true,
        };
        // name, link, mount, expected place
        for (name, link, target, expected) in [
            ("etc", "/nowhere", "/etc/x", Some("/etc")),
            ("proc", "/nowhere", "/out", Some("/proc")),
            ("dev", "../../dev2", "/out", Some("/dev")),
            ("sys", "sys", "/out", Some("/sys")),
            ("out", "/gone/out", "/out", Some("/out")),
            ("out", "/file", "/out/deep", Some("/out")),
            ("out", "../../dir", "/out/deep", None),
            ("other", "/nowhere", "/out", None),
            ("other", "/nowhere", "/out/other", None),
        ] {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("dir")).unwrap();
            fs::write(root.path().join("file"), "").unwrap();
            symlink(link, root.path().join(name)).unwrap();
            let place = match check(root.path(), &[bind(target)]) {
                Ok(()) => None,
                Err(error @ StartError::BadMountPoint { .. }) => {
                    assert!(error.is_user_error());
                    let StartError::BadMountPoint { place, .. } = error else {
                        unreachable!()
                    };
                    Some(place)
                }
                Err(error) => panic!("{error}"),
            };
            assert_eq!(
                place.as_deref(),
                expected.map(Path::new),
                "{name} -> {link}"
            );
        }
    }
}

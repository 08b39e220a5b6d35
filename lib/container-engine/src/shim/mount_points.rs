//! Makes the mount points of a container in its root file system, and says where an image has no
//! place for one. Runtimes fail there without naming it, or follow a link outside of the image's
//! meaning. Links are followed inside the root, also those that lead nowhere: their target is made.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use nix::libc::ENOENT;
use pathrs::Root;
use pathrs::error::ErrorKind;
use pathrs::flags::OpenFlags;

use crate::error::cannot_create;
use crate::{Bind, StartError};

/// Directories that get a file system of the kernel. Runtimes make them.
const SYSTEM: [&str; 3] = ["/proc", "/dev", "/sys"];
/// Maximum number of links in a path, as in the kernel.
pub const MAX_LINKS: u32 = 40;

/// What is done about a mount point that the image lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// It becomes a directory.
    MakeDirectory,
    /// It becomes a file.
    MakeFile,
    /// The runtime makes it a directory.
    Leave,
}

/// Makes what the image lacks in the root file system `root`.
pub fn make(root: &Path, binds: &[Bind]) -> Result<(), StartError> {
    // Without it no mount point can be looked up, and the runtime says why.
    let Ok(root) = Root::open(root) else {
        return Ok(());
    };
    for target in SYSTEM {
        make_one(&root, Path::new(target), Missing::Leave)?;
    }
    for bind in binds {
        let is_inside_another = SYSTEM
            .iter()
            .map(Path::new)
            .chain(binds.iter().map(|other| other.target.as_path()))
            .any(|other| bind.target != other && bind.target.starts_with(other));
        // What is below another mount is not in the image.
        if !is_inside_another {
            let missing = match bind.host.is_dir() {
                true => Missing::MakeDirectory,
                false => Missing::MakeFile,
            };
            make_one(&root, &bind.target, missing)?;
        }
    }
    Ok(())
}

/// Walks from the root to the mount point, one name after the other.
fn make_one(root: &Root, target: &Path, missing: Missing) -> Result<(), StartError> {
    let bad = |place: &Path, reason: &str| StartError::BadMountPoint {
        target: target.to_owned(),
        place: place.to_owned(),
        reason: reason.to_owned(),
    };
    let needs_dir = missing != Missing::MakeFile;
    // Without links.
    let mut done = PathBuf::from("/");
    let mut ahead = parts(target);
    let mut last_link: Option<PathBuf> = None;
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        if part == ".." {
            done.pop();
            continue;
        }
        let place = done.join(&part);
        if let Some(link) = &last_link
            && missing != Missing::Leave
            && is_of_the_kernel(&place)
            && !(place == Path::new("/dev") && ahead.front().is_some_and(|next| next == "shm"))
        {
            return Err(bad(link, "is a link into the file systems of the kernel"));
        }
        let must_be_dir = needs_dir || !ahead.is_empty();
        let found = match root.resolve_nofollow(&place) {
            Ok(found) => file_type(&found),
            Err(error) if is_not_found(&error) => {
                match (missing, &last_link) {
                    (Missing::Leave, None) => return Ok(()),
                    (Missing::Leave, Some(link)) => {
                        return Err(bad(link, "is a link that leads nowhere"));
                    }
                    _ => create(root, &place, must_be_dir).map_err(|error| {
                        cannot_create(&format!("the mount point {}", target.display()), error)
                    })?,
                }
                done = place;
                continue;
            }
            // An error of the node, which the runtime meets and tells.
            Err(_) => return Ok(()),
        };
        let Ok(found) = found else {
            return Ok(());
        };
        if found.is_symlink() {
            let Ok(leads_to) = root.readlink(&place) else {
                return Ok(());
            };
            links += 1;
            if links > MAX_LINKS {
                return Err(bad(&place, "is a link that leads nowhere"));
            }
            if leads_to.is_absolute() {
                done = PathBuf::from("/");
            }
            for part in parts(&leads_to).into_iter().rev() {
                ahead.push_front(part);
            }
            last_link = Some(place);
            continue;
        }
        match (found.is_dir(), must_be_dir) {
            (false, true) => return Err(bad(&place, "is not a directory")),
            (true, false) => {
                return Err(bad(&place, "is a directory, and the mount is a file"));
            }
            _ => done = place,
        }
    }
    match last_link {
        Some(link) if missing != Missing::Leave && done == Path::new("/") => {
            Err(bad(&link, "is a link to the root"))
        }
        _ => Ok(()),
    }
}

/// Whether nothing of an image can be at this place: it would be some process's files, or devices.
fn is_of_the_kernel(place: &Path) -> bool {
    SYSTEM.iter().any(|dir| place.starts_with(dir)) && !place.starts_with("/dev/shm")
}

/// The names in a path, without those that change nothing.
pub fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            Component::ParentDir => Some(OsStr::new("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        })
        .map(OsStr::to_owned)
        .collect()
}

fn create(root: &Root, place: &Path, is_dir: bool) -> Result<(), pathrs::error::Error> {
    if is_dir {
        root.mkdir_all(place, &Permissions::from_mode(0o755))
            .map(drop)
    } else {
        let mode = Permissions::from_mode(0o644);
        root.create_file(place, OpenFlags::O_WRONLY, &mode)
            .map(drop)
    }
}

fn is_not_found(error: &pathrs::error::Error) -> bool {
    matches!(error.kind(), ErrorKind::OsError(Some(ENOENT)))
}

fn file_type(handle: &impl AsFd) -> io::Result<std::fs::FileType> {
    let file = File::from(handle.as_fd().try_clone_to_owned()?);
    Ok(file.metadata()?.file_type())
}

/// The mount points of a container, for an error whose text does not name one.
pub fn list(binds: &[Bind]) -> String {
    let targets = SYSTEM.iter().map(Path::new);
    let targets = targets.chain(binds.iter().map(|bind| bind.target.as_path()));
    let targets: Vec<String> = targets.map(|target| target.display().to_string()).collect();
    targets.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_mount_point_is_made_or_what_is_in_the_way_is_named() {
        let bind = |host: &str, target: &str| Bind {
            host: host.into(),
            target: target.into(),
            writable: true,
        };
        // name, link, mount, what is in the way, else what is made
        for (name, link, target, expected) in [
            ("etc", "/nowhere", "/etc/x", Ok("nowhere/x")),
            ("etc", "nowhere/../else", "/etc/x", Ok("else/x")),
            ("etc", "../../../nowhere", "/etc/x", Ok("nowhere/x")),
            ("out", "/gone/out", "/out", Ok("gone/out")),
            ("out", "/gone/out/.", "/out", Ok("gone/out")),
            ("out", "other", "/out/deep", Ok("other/deep")),
            ("out", "../../dir", "/out/deep", Ok("dir/deep")),
            ("out", "dir/out", "/out", Ok("dir/out")),
            ("out", "/", "/out/x", Ok("x")),
            ("other", "/nowhere", "/out", Ok("out")),
            // A link to another.
            ("other", "link", "/other/x", Ok("leads/x")),
            ("out", "/file", "/out/deep", Err("/file")),
            ("out", "/file", "/out", Err("/file")),
            ("out", "out", "/out", Err("/out")),
            ("out", "/proc/self/cwd", "/out", Err("/out")),
            ("out", "dir/../sys", "/out/deep", Err("/out")),
            ("out", "/dev", "/out", Err("/out")),
            ("out", "/dev/shm/out", "/out", Ok("dev/shm/out")),
            ("out", "/", "/out", Err("/out")),
            ("out", "dir/..", "/out", Err("/out")),
            ("proc", "/nowhere", "/out", Err("/proc")),
            ("dev", "../../dev2", "/out", Err("/dev")),
            ("sys", "sys", "/out", Err("/sys")),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("root");
            fs::create_dir_all(root.join("dir")).unwrap();
            fs::write(root.join("file"), "").unwrap();
            symlink("leads", root.join("link")).unwrap();
            symlink(link, root.join(name)).unwrap();
            let case = format!("{name} -> {link}");
            match (make(&root, &[bind("/", target)]), expected) {
                (Ok(()), Ok(made)) => assert!(root.join(made).is_dir(), "{case}"),
                (Err(error), Err(in_the_way)) => {
                    assert!(error.is_user_error());
                    let StartError::BadMountPoint { place, .. } = error else {
                        panic!("{case}: {error}");
                    };
                    assert_eq!(place, Path::new(in_the_way), "{case}");
                }
                (got, _) => panic!("{case}: {got:?}"),
            }
            let outside = fs::read_dir(dir.path()).unwrap().count();
            assert_eq!(outside, 1, "{case}");
        }
    }

    #[test]
    fn a_file_is_mounted_on_a_file() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("dir")).unwrap();
        symlink("/run/gone/file", root.path().join("link")).unwrap();
        let host = root.path().join("host");
        fs::write(&host, "").unwrap();
        let bind = |target: &str| Bind {
            host: host.clone(),
            target: target.into(),
            writable: false,
        };
        make(root.path(), &[bind("/link"), bind("/new/file")]).unwrap();
        assert!(root.path().join("run/gone/file").is_file());
        assert!(root.path().join("new/file").is_file());
        assert!(make(root.path(), &[bind("/dir")]).is_err());
    }
}

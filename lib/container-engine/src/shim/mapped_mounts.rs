//! The files of a container whose users are not those of the node: image layers and binds, each by
//! a mount that maps the owners (mount_setattr(2), MOUNT_ATTR_IDMAP). On the disk the owners stay
//! what they are in the container, except in the writable layer of its root.
//!
//! All mounts are in one file system in memory that every user may enter, since in a user namespace
//! the container's first process may not enter a directory of root's.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use libc::{
    AT_EMPTY_PATH, AT_RECURSIVE, MOUNT_ATTR__ATIME, MOUNT_ATTR_IDMAP, MOUNT_ATTR_NODEV,
    MOUNT_ATTR_RDONLY,
};
use libcontainer::syscall::linux::MountAttr;
use libcontainer::syscall::syscall::create_syscall;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, move_mount, open_tree, unmount,
};

use super::id_map::IdMap;
use super::user_namespace::UserNamespace;
use crate::Bind;

const OTHERS_ENTER: u32 = 0o001;

/// Mounted in this mount namespace only.
#[derive(Debug)]
pub struct MappedMounts {
    dir: PathBuf,
    /// Lowest first.
    pub layers: Vec<PathBuf>,
    pub binds: Vec<Bind>,
    /// The /sys of this network namespace.
    pub sysfs: PathBuf,
}

impl MappedMounts {
    /// Mounts all below `dir`, which is made. The error says what the kernel or a file system
    /// refused; then nothing is left.
    pub fn make(
        dir: &Path,
        namespace: &UserNamespace,
        layers: &[PathBuf],
        binds: &[Bind],
    ) -> Result<Self, String> {
        let text = |error: io::Error| format!("{} cannot be used: {error}", dir.display());
        if let Some(run_dir) = dir.parent() {
            fs::set_permissions(run_dir, fs::Permissions::from_mode(0o711)).map_err(text)?;
        }
        for above in dir.ancestors().skip(1) {
            let mode = fs::metadata(above).map_err(text)?.permissions().mode();
            if mode & OTHERS_ENTER == 0 {
                let above = above.display();
                return Err(format!("other users may not enter {above}"));
            }
        }
        make_dir(dir).map_err(text)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        if let Err(error) = mount("tmpfs", dir, "tmpfs", flags, c"mode=711") {
            let _ = fs::remove_dir(dir);
            return Err(text(error.into()));
        }
        let mut made = Self {
            dir: dir.to_owned(),
            layers: Vec::new(),
            binds: Vec::new(),
            sysfs: dir.join("sys"),
        };
        match made.fill(namespace, layers, binds) {
            Ok(()) => Ok(made),
            Err(reason) => {
                // What stays mounted ends with this process.
                let _ = made.unmount();
                Err(reason)
            }
        }
    }

    fn fill(
        &mut self,
        namespace: &UserNamespace,
        layers: &[PathBuf],
        binds: &[Bind],
    ) -> Result<(), String> {
        for (number, layer) in layers.iter().enumerate() {
            let target = self.dir.join(format!("layer{number}"));
            mount_mapped(layer, &target, Some(namespace), MOUNT_ATTR_RDONLY)
                .map_err(|error| refused(layer, &error))?;
            self.layers.push(target);
        }
        if layers.is_empty() {
            let empty = self.dir.join("layer");
            let root = Some(namespace.map.root());
            make_dir(&empty)
                .and_then(|()| std::os::unix::fs::chown(&empty, root, root))
                .map_err(|error| error.to_string())?;
            self.layers.push(empty);
        }
        for (number, bind) in binds.iter().enumerate() {
            let target = self.dir.join(format!("bind{number}"));
            let access = if bind.writable { 0 } else { MOUNT_ATTR_RDONLY };
            let mounted = mount_mapped(&bind.host, &target, Some(namespace), access);
            match mounted {
                // Whoever its owner is, it can be read.
                Err(_) if !bind.writable && is_readable_file(&bind.host) => {
                    mount_mapped(&bind.host, &target, None::<&UserNamespace>, access)
                }
                mounted => mounted,
            }
            .map_err(|error| refused(&bind.host, &error))?;
            self.binds.push(Bind {
                host: target,
                ..bind.clone()
            });
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        // In a user namespace the kernel mounts no /proc that would show more than the one before
        // (mount_namespaces(7)), and in a container parts of that are hidden.
        mount("proc", "/proc", "proc", flags, None)
            .map_err(|error| format!("no /proc can be mounted: {error}"))?;
        let flags = flags | MountFlags::RDONLY;
        make_dir(&self.sysfs)
            .and_then(|()| Ok(mount("sysfs", &self.sysfs, "sysfs", flags, None)?))
            .map_err(|error| format!("no /sys can be mounted: {error}"))
    }

    /// A directory of this file system for a mount.
    pub fn mount_point(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn unmount(&self) -> io::Result<()> {
        unmount(&self.dir, UnmountFlags::DETACH)?;
        fs::remove_dir(&self.dir)
    }
}

fn refused(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    format!("owners of files in {path} cannot be mapped ({error})")
}

fn is_readable_file(path: &Path) -> bool {
    let facts = fs::metadata(path);
    facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o004 != 0)
}

fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o711).create(path)
}

/// Mounts `source` with all mounts in it at `target`, which is made.
fn mount_mapped(
    source: &Path,
    target: &Path,
    namespace: Option<&UserNamespace>,
    access: u64,
) -> io::Result<()> {
    let tree = mapped_tree(source, namespace, access, OpenTreeFlags::AT_RECURSIVE)?;
    match fs::metadata(source)?.is_dir() {
        true => make_dir(target)?,
        false => drop(File::create_new(target)?),
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(&tree, "", CWD, target, flags)?)
}

/// Whether containers with files below these directories, which exist, can have users of their own.
/// The error says why not.
pub fn can_map_owners(dirs: &[&Path]) -> Result<(), String> {
    let namespace = UserNamespace::create(IdMap::choose(0)).map_err(|error| error.to_string())?;
    for dir in dirs {
        mapped_tree(dir, Some(&namespace), 0, OpenTreeFlags::empty())
            .map_err(|error| refused(dir, &error))?;
    }
    Ok(())
}

/// A mount of `source`, at no place yet; with all mounts in it if `depth` says so.
fn mapped_tree(
    source: &Path,
    namespace: Option<&UserNamespace>,
    access: u64,
    depth: OpenTreeFlags,
) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, source, flags | depth)?;
    let (map, userns_fd) = match namespace {
        Some(namespace) => (MOUNT_ATTR_IDMAP, namespace.as_fd().as_raw_fd() as u64),
        None => (0, 0),
    };
    let attributes = MountAttr {
        attr_set: map | access | MOUNT_ATTR_NODEV,
        // None set means `relatime`. The container cannot change them, so they are what runtimes
        // set.
        attr_clr: MOUNT_ATTR__ATIME,
        propagation: 0,
        userns_fd,
    };
    create_syscall()
        .mount_setattr(
            tree.as_fd(),
            Path::new(""),
            (AT_EMPTY_PATH | AT_RECURSIVE) as u32,
            &attributes,
            size_of::<MountAttr>(),
        )
        .map_err(|error| match error {
            libcontainer::syscall::SyscallError::Nix(errno) => io::Error::from(errno),
            other => io::Error::other(other),
        })?;
    Ok(tree)
}

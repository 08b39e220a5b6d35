//! Checks the command and the working directory before the runtime does, so that every engine
//! reports the same errors. In doubt it reports nothing, and the runtime decides.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::executable::{foreign_formats, head, interpreter, is_program};
use super::image_file;
use super::mount_points::{self, MAX_LINKS};
use crate::shim::sandbox::Sandbox;
use crate::shim::variable;
use crate::{Bind, StartError};

/// Returns the path of the command's program in this mount namespace, if it is known.
pub fn check_command(sandbox: &Sandbox) -> Result<Option<PathBuf>, StartError> {
    let root_view = RootView {
        root: &sandbox.root,
        binds: &sandbox.binds,
    };
    root_view.check_cwd(&sandbox.cwd)?;
    let path = variable(&sandbox.environment, "PATH").unwrap_or_default();
    let command = sandbox.arguments.first().ok_or(StartError::NoCommand)?;
    let user = sandbox.identity.uid.to_string();
    let program = root_view.check_program(command, path, &sandbox.cwd, &user)?;
    let link = |file: File| fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
    Ok(program.and_then(link))
}

/// The container's files as they will be: its root file system with the binds on it.
struct RootView<'a> {
    root: &'a Path,
    binds: &'a [Bind],
}

/// The kind of entry at a path.
enum PathEntry {
    Absent,
    Present(File),
    Unknown,
}

impl RootView<'_> {
    fn check_cwd(&self, cwd: &str) -> Result<(), StartError> {
        match self.at(Path::new(cwd)) {
            PathEntry::Absent => Err(StartError::CwdMissing {
                cwd: cwd.to_owned(),
            }),
            PathEntry::Present(file) if file.metadata().is_ok_and(|m| !m.is_dir()) => {
                Err(StartError::CwdUnusable {
                    cwd: cwd.to_owned(),
                    reason: "it is not a directory".to_owned(),
                })
            }
            _ => Ok(()),
        }
    }

    fn check_program(
        &self,
        command: &str,
        path: &str,
        cwd: &str,
        user: &str,
    ) -> Result<Option<File>, StartError> {
        let not_executable = |resolved: &Path| StartError::NotExecutable {
            command: command.to_owned(),
            resolved: resolved.display().to_string(),
            user: user.to_owned(),
        };
        if command.contains('/') {
            let file = Path::new(cwd).join(command);
            return match self.at(&file) {
                PathEntry::Absent => Err(StartError::CommandMissing {
                    command: command.to_owned(),
                }),
                PathEntry::Present(found) if !is_executable(&found) => {
                    Err(not_executable(Path::new(command)))
                }
                PathEntry::Present(found) => {
                    self.check_format(&found, command, cwd)?;
                    Ok(Some(found))
                }
                PathEntry::Unknown => Ok(None),
            };
        }
        let mut refused = None;
        for dir in path.split(':') {
            let name = match dir {
                "" => Path::new(".").join(command),
                dir => Path::new(dir).join(command),
            };
            match self.at(&Path::new(cwd).join(&name)) {
                PathEntry::Unknown => return Ok(None),
                PathEntry::Absent => {}
                PathEntry::Present(found) if is_executable(&found) => {
                    self.check_format(&found, &name.display().to_string(), cwd)?;
                    return Ok(Some(found));
                }
                PathEntry::Present(found) => {
                    if found.metadata().is_ok_and(|m| m.is_file()) {
                        refused.get_or_insert(name);
                    }
                }
            }
        }
        Err(match refused {
            Some(name) => not_executable(&name),
            None => StartError::CommandNotFound {
                command: command.to_owned(),
                path: path.to_owned(),
            },
        })
    }

    fn check_format(&self, file: &File, resolved: &str, cwd: &str) -> Result<(), StartError> {
        let Some(head) = head(file).filter(|_| !foreign_formats()) else {
            return Ok(());
        };
        if !is_program(&head) {
            return Err(StartError::BadFormat {
                resolved: resolved.to_owned(),
            });
        }
        match interpreter(&head) {
            Some(interpreter)
                if matches!(
                    self.at(&Path::new(cwd).join(&interpreter)),
                    PathEntry::Absent
                ) =>
            {
                Err(StartError::InterpreterMissing {
                    resolved: resolved.to_owned(),
                    interpreter,
                })
            }
            _ => Ok(()),
        }
    }

    fn at(&self, path: &Path) -> PathEntry {
        match self.resolve(path) {
            Ok(Some(host)) => match image_file::find(&host) {
                Ok(file) => PathEntry::Present(file),
                Err(_) => PathEntry::Unknown,
            },
            Ok(None) => PathEntry::Unknown,
            Err(NotFound) => PathEntry::Absent,
        }
    }

    /// The node's path of a container's path. Links are followed as in the container. `None` where
    /// only the container can resolve it.
    fn resolve(&self, path: &Path) -> Result<Option<PathBuf>, NotFound> {
        let mut to_do: Vec<OsString> = parts(path);
        let mut done = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = to_do.pop() {
            if part == ".." {
                done.pop();
                continue;
            }
            let next = done.join(part);
            if ["/proc", "/dev", "/sys"]
                .iter()
                .any(|dir| next.starts_with(dir))
            {
                return Ok(None);
            }
            let is_target = self.binds.iter().any(|bind| bind.target == next);
            if is_target || self.binds.iter().any(|bind| bind.target.starts_with(&next)) {
                // A mount covers the entry, or the entry is a parent directory of a mount.
                done = next;
                continue;
            }
            match fs::symlink_metadata(self.host(&next)) {
                Ok(found) if found.is_symlink() => {
                    links += 1;
                    let Ok(target) = fs::read_link(self.host(&next)) else {
                        return Ok(None);
                    };
                    if links > MAX_LINKS {
                        return Err(NotFound);
                    }
                    if target.is_absolute() {
                        done = PathBuf::from("/");
                    }
                    to_do.extend(parts(&target));
                }
                Ok(_) => done = next,
                Err(error) => match error.kind() {
                    ErrorKind::NotFound | ErrorKind::NotADirectory => return Err(NotFound),
                    _ => return Ok(None),
                },
            }
        }
        Ok(Some(self.host(&done)))
    }

    fn host(&self, path: &Path) -> PathBuf {
        let (on, target, host) = self
            .binds
            .iter()
            .map(|bind| (bind.target.as_path(), bind.host.as_path()))
            .chain([(Path::new("/"), self.root)])
            .filter_map(|(target, host)| Some((path.strip_prefix(target).ok()?, target, host)))
            .max_by_key(|(_, target, _)| target.components().count())
            .unwrap_or((path, Path::new("/"), self.root));
        match on.as_os_str().is_empty() && target != Path::new("/") {
            true => host.to_owned(),
            false => host.join(on),
        }
    }
}

/// The path certainly does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NotFound;

/// The names of a path, last first.
fn parts(path: &Path) -> Vec<OsString> {
    mount_points::parts(path).into_iter().rev().collect()
}

fn is_executable(file: &File) -> bool {
    file.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn paths_lead_where_the_container_will_find_them() {
        let dir = tempfile::tempdir().unwrap();
        let (root, host) = (dir.path().join("root"), dir.path().join("host"));
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::create_dir_all(host.join("sub")).unwrap();
        fs::write(root.join("usr/bin/tool"), "x").unwrap();
        fs::write(host.join("sub/data"), "x").unwrap();
        symlink("usr/bin", root.join("bin")).unwrap();
        symlink("/mnt/in/sub", root.join("data")).unwrap();
        symlink("/usr/bin/tool", host.join("out")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let binds = [Bind {
            host: host.clone(),
            target: "/mnt/in".into(),
            writable: false,
        }];
        let root_view = RootView {
            root: &root,
            binds: &binds,
        };
        let tool = Ok(Some(root.join("usr/bin/tool")));
        for (path, expected) in [
            ("/bin/tool", tool.clone()),
            // From where the link led to.
            ("/bin/../bin/./tool", tool.clone()),
            ("/bin/../tool", Err(NotFound)),
            ("/bin/none", Err(NotFound)),
            ("/usr/bin/tool/below", Err(NotFound)),
            ("/data/data", Ok(Some(host.join("sub/data")))),
            ("/mnt/in", Ok(Some(host.clone()))),
            ("/mnt/in/none", Err(NotFound)),
            ("/mnt/in/out", tool),
            // The image has no /mnt, but it will be there.
            ("/mnt", Ok(Some(root.join("mnt")))),
            ("/loop", Err(NotFound)),
            ("/proc/self/exe", Ok(None)),
        ] {
            assert_eq!(root_view.resolve(Path::new(path)), expected, "{path}");
        }
    }
}

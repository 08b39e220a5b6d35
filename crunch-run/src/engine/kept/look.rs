//! Looks at the command and the working directory before the runtime does, to say what is wrong in the same
//! sentences on every engine. Says nothing where it cannot be sure: then the runtime decides.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use crate::engine::builtin::{foreign_formats, interpreter, is_program};
use crate::engine::kept::scene::Scene;
use crate::engine::kept::variable;
use crate::engine::{Bind, StartError};

/// As many as the kernel follows.
const MOST_LINKS: u32 = 40;

pub fn over(scene: &Scene) -> Result<(), StartError> {
    let view = View {
        root: &scene.root,
        binds: &scene.binds,
    };
    view.check_cwd(&scene.cwd)?;
    let path = variable(&scene.environment, "PATH").unwrap_or_default();
    let command = scene.arguments.first().ok_or(StartError::NoCommand)?;
    view.check_command(command, path, &scene.cwd, &scene.identity.uid.to_string())
}

/// The container's files as they will be: its root, with mounts on it.
struct View<'a> {
    root: &'a Path,
    binds: &'a [Bind],
}

/// What is at a path.
enum Found {
    Nothing,
    Something(File),
    Unknown,
}

impl View<'_> {
    fn check_cwd(&self, cwd: &str) -> Result<(), StartError> {
        match self.at(Path::new(cwd)) {
            Found::Nothing => Err(StartError::CwdMissing {
                cwd: cwd.to_owned(),
            }),
            Found::Something(file) if file.metadata().is_ok_and(|m| !m.is_dir()) => {
                Err(StartError::CwdUnusable {
                    cwd: cwd.to_owned(),
                    reason: "it is not a directory".to_owned(),
                })
            }
            _ => Ok(()),
        }
    }

    fn check_command(
        &self,
        command: &str,
        path: &str,
        cwd: &str,
        user: &str,
    ) -> Result<(), StartError> {
        let not_executable = |resolved: &Path| StartError::NotExecutable {
            command: command.to_owned(),
            resolved: resolved.display().to_string(),
            user: user.to_owned(),
        };
        if command.contains('/') {
            let file = Path::new(cwd).join(command);
            return match self.at(&file) {
                Found::Nothing => Err(StartError::CommandMissing {
                    command: command.to_owned(),
                }),
                Found::Something(found) if !is_executable(&found) => {
                    Err(not_executable(Path::new(command)))
                }
                Found::Something(found) => self.check_format(&found, command, cwd),
                Found::Unknown => Ok(()),
            };
        }
        let mut refused = None;
        for dir in path.split(':') {
            let name = match dir {
                "" => Path::new(".").join(command),
                dir => Path::new(dir).join(command),
            };
            match self.at(&Path::new(cwd).join(&name)) {
                Found::Unknown => return Ok(()),
                Found::Nothing => {}
                Found::Something(found) if is_executable(&found) => {
                    return self.check_format(&found, &name.display().to_string(), cwd);
                }
                Found::Something(found) => {
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
        let mut head = Vec::new();
        if foreign_formats() || file.take(64 << 10).read_to_end(&mut head).is_err() {
            return Ok(());
        }
        if !is_program(&head) {
            return Err(StartError::BadFormat {
                resolved: resolved.to_owned(),
            });
        }
        match interpreter(&head) {
            Some(interpreter)
                if matches!(self.at(&Path::new(cwd).join(&interpreter)), Found::Nothing) =>
            {
                Err(StartError::InterpreterMissing {
                    resolved: resolved.to_owned(),
                    interpreter,
                })
            }
            _ => Ok(()),
        }
    }

    fn at(&self, path: &Path) -> Found {
        match self.resolve(path) {
            Ok(Some(host)) => match File::open(host) {
                Ok(file) => Found::Something(file),
                Err(_) => Found::Unknown,
            },
            Ok(None) => Found::Unknown,
            Err(Missing) => Found::Nothing,
        }
    }

    /// Where on the node a path of the container is, links followed as the container will follow them.
    /// `None` where only the container can tell.
    fn resolve(&self, path: &Path) -> Result<Option<PathBuf>, Missing> {
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
                // What the image has there is covered, or made a directory.
                done = next;
                continue;
            }
            match fs::symlink_metadata(self.host(&next)) {
                Ok(found) if found.is_symlink() => {
                    links += 1;
                    let Ok(target) = fs::read_link(self.host(&next)) else {
                        return Ok(None);
                    };
                    if links > MOST_LINKS {
                        return Ok(None);
                    }
                    if target.is_absolute() {
                        done = PathBuf::from("/");
                    }
                    to_do.extend(parts(&target));
                }
                Ok(_) => done = next,
                Err(error) => match error.kind() {
                    ErrorKind::NotFound | ErrorKind::NotADirectory => return Err(Missing),
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

/// Nothing is there, for sure.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Missing;

/// The names of a path, last first.
fn parts(path: &Path) -> Vec<OsString> {
    let mut parts: Vec<OsString> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => Some(part.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect();
    parts.reverse();
    parts
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
        let view = View {
            root: &root,
            binds: &binds,
        };
        let tool = Ok(Some(root.join("usr/bin/tool")));
        for (path, expected) in [
            ("/bin/tool", tool.clone()),
            // From where the link led to.
            ("/bin/../bin/./tool", tool.clone()),
            ("/bin/../tool", Err(Missing)),
            ("/bin/none", Err(Missing)),
            ("/usr/bin/tool/below", Err(Missing)),
            ("/data/data", Ok(Some(host.join("sub/data")))),
            ("/mnt/in", Ok(Some(host.clone()))),
            ("/mnt/in/none", Err(Missing)),
            ("/mnt/in/out", tool),
            // The image has no /mnt, but it will be there.
            ("/mnt", Ok(Some(root.join("mnt")))),
            ("/loop", Ok(None)),
            ("/proc/self/exe", Ok(None)),
        ] {
            assert_eq!(view.resolve(Path::new(path)), expected, "{path}");
        }
    }
}

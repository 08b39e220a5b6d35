//! The last steps inside the container: find the command, and become it. Runs in the container's first
//! process, as the container's user, with the container's own view of files.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{
    Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError,
};
use nix::sys::signal::SigSet;
use rustix::fs::Access;

use crate::engine::StartError;
use crate::engine::kept::variable;

/// What libcontainer calls at the right moments.
#[derive(Clone)]
pub struct Launcher {
    pub cwd: String,
    pub arguments: Vec<String>,
    pub environment: Vec<String>,
    pub user: String,
    /// This node may run what does not look like a program.
    pub foreign_formats: bool,
    /// The keeper reads the reason here. It sees the end of the pipe when the command has started.
    pub report: Rc<OwnedFd>,
}

impl Launcher {
    fn prepare(&self) -> Result<PathBuf, StartError> {
        // However the keeper dies, the kernel then ends this process, and with it its pid
        // namespace. Set here, because changing the user would have cleared it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .map_err(|error| StartError::Runtime {
                reason: format!("its end cannot be tied to that of its keeper ({error})"),
            })?;
        enter(&self.cwd)?;
        let path = variable(&self.environment, "PATH").unwrap_or_default();
        let command = self.arguments.first().ok_or(StartError::NoCommand)?;
        let program = find(command, path, &self.user)?;
        // Exec would hand an unknown format to a shell, which complains of its own.
        if !self.foreign_formats && head(&program).is_some_and(|head| !is_program(&head)) {
            return Err(StartError::BadFormat {
                resolved: program.display().to_string(),
            });
        }
        Ok(program)
    }

    fn tell(&self, error: &StartError) {
        let text = serde_json::to_vec(error).unwrap_or_default();
        // With nobody left to read it, there is nobody to tell.
        let _ = rustix::io::write(&*self.report, &text);
    }
}

impl Executor for Launcher {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        self.prepare().map(drop).map_err(|error| {
            self.tell(&error);
            ExecutorValidationError::ArgValidationError(error.to_string())
        })
    }

    fn setup_envs(
        &self,
        _: std::collections::HashMap<String, String>,
    ) -> Result<(), ExecutorSetEnvsError> {
        // The environment is handed over with exec.
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let error = match self.prepare() {
            Ok(program) => {
                let variables = self.environment.iter().filter_map(|v| v.split_once('='));
                // The mask is inherited through exec: with the keeper's, no TERM would ever
                // reach the command. Setting a mask that is valid cannot fail.
                let _ = SigSet::empty().thread_set_mask();
                let error = Command::new(&program)
                    .arg0(&self.arguments[0])
                    .args(&self.arguments[1..])
                    .env_clear()
                    .envs(variables)
                    .exec();
                explain(&error, &program)
            }
            Err(error) => error,
        };
        self.tell(&error);
        Err(ExecutorError::Other(error.to_string()))
    }
}

fn enter(cwd: &str) -> Result<(), StartError> {
    let unusable = |reason: String| StartError::CwdUnusable {
        cwd: cwd.to_owned(),
        reason,
    };
    std::env::set_current_dir(cwd).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StartError::CwdMissing {
            cwd: cwd.to_owned(),
        },
        io::ErrorKind::NotADirectory => unusable("it is not a directory".to_owned()),
        io::ErrorKind::PermissionDenied => {
            unusable("the container's user has no permission".to_owned())
        }
        _ => unusable(error.to_string()),
    })?;
    // A path through /proc/self/fd could lead to a directory outside of the container, which then
    // has no name here.
    match rustix::process::getcwd(Vec::new()) {
        Ok(here) if here.as_bytes().starts_with(b"/") => Ok(()),
        _ => Err(unusable("it is not inside the container".to_owned())),
    }
}

/// As execvp looks for it.
fn find(command: &str, path: &str, user: &str) -> Result<PathBuf, StartError> {
    let not_executable = |found: &Path| StartError::NotExecutable {
        command: command.to_owned(),
        resolved: found.display().to_string(),
        user: user.to_owned(),
    };
    if command.contains('/') {
        let file = PathBuf::from(command);
        if executable(&file) {
            return Ok(file);
        }
        return Err(
            if rustix::fs::stat(&file).err() == Some(rustix::io::Errno::NOENT) {
                StartError::CommandMissing {
                    command: command.to_owned(),
                }
            } else {
                not_executable(&file)
            },
        );
    }
    let mut refused = None;
    for dir in path.split(':') {
        let file = if dir.is_empty() {
            Path::new(".").join(command)
        } else {
            Path::new(dir).join(command)
        };
        if executable(&file) {
            return Ok(file);
        }
        if refused.is_none() && file.is_file() {
            refused = Some(file);
        }
    }
    Err(match refused {
        Some(file) => not_executable(&file),
        None => StartError::CommandNotFound {
            command: command.to_owned(),
            path: path.to_owned(),
        },
    })
}

fn executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, Access::EXEC_OK).is_ok()
}

/// Why exec refused a file that is there and executable.
fn explain(error: &io::Error, program: &Path) -> StartError {
    use rustix::io::Errno;
    let resolved = program.display().to_string();
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => StartError::InterpreterMissing {
            interpreter: head(program)
                .and_then(|head| interpreter(&head))
                .unwrap_or_else(|| "it names".to_owned()),
            resolved,
        },
        Some(Errno::NOEXEC) => StartError::BadFormat { resolved },
        Some(Errno::TOOBIG) => StartError::ArgumentsTooLong { resolved },
        _ => StartError::Runtime {
            reason: format!("{resolved} cannot be executed: {error}"),
        },
    }
}

/// The start of the file, where the container's user may read it.
fn head(program: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    File::open(program)
        .ok()?
        .take(64 << 10)
        .read_to_end(&mut head)
        .ok()?;
    Some(head)
}

/// A script that names its interpreter, or a program for this processor.
pub fn is_program(head: &[u8]) -> bool {
    const MACHINES: &[u16] = match std::env::consts::ARCH.as_bytes() {
        // Each with its 32-bit sibling, which the kernel may run too.
        b"x86_64" => &[62, 3],
        b"aarch64" => &[183, 40],
        _ => &[],
    };
    if head.starts_with(b"#!") {
        return true;
    }
    let machine = head
        .get(18..20)
        .and_then(|b| Some(u16::from_le_bytes(b.try_into().ok()?)));
    head.starts_with(b"\x7fELF")
        && (MACHINES.is_empty() || machine.is_some_and(|m| MACHINES.contains(&m)))
}

/// What a script's first line or an ELF file's header asks for.
pub fn interpreter(head: &[u8]) -> Option<String> {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next()?;
        return String::from_utf8_lossy(line)
            .split_whitespace()
            .next()
            .map(str::to_owned);
    }
    elf_interpreter(head)
}

/// The PT_INTERP string of a little-endian 64-bit ELF file.
fn elf_interpreter(head: &[u8]) -> Option<String> {
    const PT_INTERP: u32 = 3;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let u64_at = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    let u16_at = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let table = usize::try_from(u64_at(0x20)?).ok()?;
    let (size, count) = (usize::from(u16_at(0x36)?), usize::from(u16_at(0x38)?));
    (0..count).find_map(|i| {
        let entry = table.checked_add(size.checked_mul(i)?)?;
        let kind = u32::from_le_bytes(head.get(entry..entry + 4)?.try_into().ok()?);
        if kind != PT_INTERP {
            return None;
        }
        let offset = usize::try_from(u64_at(entry + 8)?).ok()?;
        let length = usize::try_from(u64_at(entry + 32)?).ok()?;
        let text = head.get(offset..offset.checked_add(length)?)?;
        Some(
            String::from_utf8_lossy(text)
                .trim_end_matches('\0')
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn commands_are_found_as_execvp_finds_them() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("a/tool", 0o644), ("b/tool", 0o755), ("a/plain", 0o644)] {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "x").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(dir.path().join("a/dir")).unwrap();
        let path = format!("{0}/a:{0}/b", dir.path().display());
        // The first that can be executed, not the first that is there.
        assert_eq!(find("tool", &path, "0").unwrap(), dir.path().join("b/tool"));
        let message = |command: &str| find(command, &path, "0").unwrap_err().to_string();
        assert_eq!(
            message("nope"),
            format!("command \"nope\" not found in the image; PATH is {path}")
        );
        assert_eq!(
            message("dir"),
            format!("command \"dir\" not found in the image; PATH is {path}")
        );
        assert!(message("plain").contains("is not an executable file"));
        assert_eq!(
            message("/no/such"),
            "command \"/no/such\" does not exist in the image"
        );
        assert!(message("/").contains("is not an executable file"));
    }

    #[test]
    fn programs_of_other_machines_are_none() {
        let me = head(&std::env::current_exe().unwrap()).unwrap();
        assert!(is_program(&me));
        assert!(is_program(b"#!/bin/sh\n"));
        assert!(!is_program(b"echo no first line\n"));
        assert!(!is_program(b""));
        let mut other = me;
        // IBM S/390
        other[18..20].copy_from_slice(&22u16.to_le_bytes());
        assert!(!is_program(&other));
    }

    #[test]
    fn interpreters_are_named() {
        assert_eq!(
            interpreter(b"#! /opt/bin/python3 -u\n").as_deref(),
            Some("/opt/bin/python3")
        );
        // A dynamically linked program: the test itself.
        let me = std::env::current_exe().unwrap();
        let loader = interpreter(&head(&me).unwrap());
        assert!(loader.is_none_or(|l| l.starts_with("/lib") && l.contains("ld-")));
        assert_eq!(elf_interpreter(b"\x7fELF\x02\x01"), None);
    }
}

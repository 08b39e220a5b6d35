//! The last steps inside the container: find the command, and become it. Runs in the container's
//! first process, as the container's user, with the container's own view of files.

use std::io;
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
use seccompiler::{BpfProgram, apply_filter};

use crate::StartError;
use crate::shim::executable::{head, interpreter, is_program};
use crate::shim::image_file;
use crate::shim::variable;

/// Callbacks of libcontainer.
#[derive(Clone)]
pub struct ExecLauncher {
    pub cwd: String,
    pub arguments: Vec<String>,
    pub environment: Vec<String>,
    pub user: String,
    /// Whether this node may run files of foreign formats.
    pub foreign_formats: bool,
    /// The filter of system calls of the command.
    pub seccomp: Vec<BpfProgram>,
    /// Pipe to the shim for the error. It closes when the command has started.
    pub report: Rc<OwnedFd>,
}

impl ExecLauncher {
    fn prepare(&self) -> Result<PathBuf, StartError> {
        // However the shim dies, the kernel then ends this process, and with it its pid
        // namespace. Set here, because changing the user would have cleared it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .map_err(|error| {
                StartError::runtime(format!(
                    "its end cannot be tied to that of its shim ({error})"
                ))
            })?;
        enter(&self.cwd)?;
        let path = variable(&self.environment, "PATH").unwrap_or_default();
        let command = self.arguments.first().ok_or(StartError::NoCommand)?;
        let program = find(command, path, &self.user)?;
        // Exec would pass an unknown format to a shell, whose error would mislead.
        if !self.foreign_formats && head_of(&program).is_some_and(|head| !is_program(&head)) {
            return Err(StartError::BadFormat {
                resolved: program.display().to_string(),
            });
        }
        Ok(program)
    }

    /// Installs the filter. What follows must be in it: no more than exec, and the report.
    fn restrict(&self) -> Result<(), StartError> {
        self.seccomp.iter().try_for_each(|program| {
            apply_filter(program).map_err(|error| {
                let what = "its filter of system calls could not be installed";
                StartError::runtime(format!("{what}: {error}"))
            })
        })
    }

    fn report_error(&self, error: &StartError) {
        let text = serde_json::to_vec(error).unwrap_or_default();
        // If the shim is gone, no process reads the report.
        let _ = rustix::io::write(&*self.report, &text);
    }
}

impl Executor for ExecLauncher {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        self.prepare().map(drop).map_err(|error| {
            self.report_error(&error);
            ExecutorValidationError::ArgValidationError(error.to_string())
        })
    }

    fn setup_envs(
        &self,
        _: std::collections::HashMap<String, String>,
    ) -> Result<(), ExecutorSetEnvsError> {
        // exec passes the environment.
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let prepared = self
            .prepare()
            .and_then(|program| self.restrict().map(|()| program));
        let error = match prepared {
            Ok(program) => {
                let variables = self.environment.iter().filter_map(|v| v.split_once('='));
                // The mask is inherited through exec: with the shim's, no TERM would ever
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
        self.report_error(&error);
        Err(ExecutorError::Other(error.to_string()))
    }
}

fn head_of(program: &Path) -> Option<Vec<u8>> {
    head(&image_file::find(program).ok()?)
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

/// Finds a command like execvp.
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
            interpreter: head_of(program)
                .and_then(|head| interpreter(&head))
                .unwrap_or_else(|| "it names".to_owned()),
            resolved,
        },
        // LOOP: a script that is its own interpreter.
        Some(Errno::NOEXEC | Errno::LOOP) => StartError::BadFormat { resolved },
        Some(Errno::TOOBIG) => StartError::ArgumentsTooLong { resolved },
        _ => StartError::runtime(format!("{resolved} cannot be executed: {error}")),
    }
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
}

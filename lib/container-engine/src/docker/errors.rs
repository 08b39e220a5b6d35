//! Classifies errors of the daemon and its runtimes: errors of the request get our own wording.
//! Pure.

use std::path::{Path, PathBuf};

use bollard::errors::Error;

use crate::shim::process_spec::DEFAULT_PATH;
use crate::shim::user;
use crate::{ContainerSpec, StartError};
use node_cache::image::Image;

/// The command and paths that error messages name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorContext {
    command: String,
    path: String,
    cwd: String,
    user: String,
    mounts: Vec<PathBuf>,
}

impl ErrorContext {
    /// Whether something is mounted at this path, or above it.
    pub fn is_mount(&self, path: &str) -> bool {
        self.mounts
            .iter()
            .any(|mount| Path::new(path).starts_with(mount))
    }

    pub fn new(image: &Image, spec: &ContainerSpec) -> Self {
        let config = &image.config;
        let first = config
            .entrypoint
            .first()
            .or(spec.command.first())
            .or(config.cmd.first());
        let path = spec.environment.get("PATH").cloned().or_else(|| {
            let mut given = config.env.iter().filter_map(|v| v.strip_prefix("PATH="));
            given.next_back().map(str::to_owned)
        });
        let cwd = spec.cwd.clone().filter(|c| !c.is_empty() && c != ".");
        Self {
            command: first.cloned().unwrap_or_default(),
            path: path.unwrap_or_else(|| DEFAULT_PATH.to_owned()),
            cwd: cwd.or(config.working_dir.clone()).unwrap_or_default(),
            user: config.user.clone().unwrap_or_default(),
            mounts: spec.binds.iter().map(|bind| bind.target.clone()).collect(),
        }
    }

    /// The error of the request or image, if the daemon's error is one.
    pub fn user_error(&self, error: &Error) -> Option<StartError> {
        let message = daemon_message(error)?;
        let text = message.to_lowercase();
        let has = |words: &str| text.contains(words);
        let command = self.command.clone();
        if has("no command specified") || has("no command or entrypoint") {
            return Some(StartError::NoCommand);
        }
        if has("unable to find user") || has("no matching entries in passwd") {
            let user = self.user.clone();
            return Some(StartError::UnknownUser { user });
        }
        if has("unable to find group") || has("no matching entries in group") {
            let (_, group) = self.user.split_once(':').unwrap_or_default();
            let group = group.to_owned();
            return Some(StartError::UnknownGroup { group });
        }
        // Podman names the last part of the path only.
        let is_loop = |file: &str| {
            let name = file.trim_start_matches("/etc");
            has(&format!("{name}/: too many levels of symbolic links"))
        };
        if let Some(file) = user::ACCOUNTS.into_iter().find(|file| is_loop(file)) {
            return Some(user::unusable(file, "is a link that leads nowhere"));
        }
        if has("workdir") || has("chdir to cwd") {
            let cwd = self.cwd.clone();
            return Some(if has("permission denied") {
                let reason = "permission denied".to_owned();
                StartError::CwdUnusable { cwd, reason }
            } else {
                StartError::CwdMissing { cwd }
            });
        }
        if (has("not a directory") || has("is a directory"))
            && let Some(target) = self.mount_in(message)
        {
            return Some(StartError::BadMountPoint {
                target: target.clone(),
                place: target.clone(),
                reason: "is of another kind than the mount".to_owned(),
            });
        }
        if has("argument list too long") {
            return Some(StartError::ArgumentsTooLong { resolved: command });
        }
        if has("exec format error") {
            return Some(StartError::BadFormat { resolved: command });
        }
        // Only messages about the command itself: much else can be missing or forbidden.
        let of_command = has("exec: ") || has("executable file") || has("exec user process");
        if !of_command {
            return None;
        }
        if has("permission denied") || has("is a directory") {
            let (resolved, user) = (command.clone(), self.user.clone());
            let user = if user.is_empty() {
                "root".to_owned()
            } else {
                user
            };
            return Some(StartError::NotExecutable {
                command,
                resolved,
                user,
            });
        }
        if has("not found in $path") && !self.command.contains('/') {
            let path = self.path.clone();
            return Some(StartError::CommandNotFound { command, path });
        }
        if has("no such file") || has("not found") {
            return Some(StartError::CommandMissing { command });
        }
        None
    }
}

/// Quotes around a path in messages of runc and crun. crun leaves the first slash out.
const QUOTES: [(&str, &str); 3] = [("\"", "\""), ("`", "`"), ("`", "'")];

impl ErrorContext {
    /// The mount that a message of a runtime is about.
    fn mount_in(&self, message: &str) -> Option<&PathBuf> {
        let is_named = |target: &Path| {
            let whole = target.display().to_string();
            let forms = [whole.as_str(), whole.trim_start_matches('/')];
            let quoted =
                |form: &str, (open, close)| message.contains(&format!("{open}{form}{close}"));
            forms
                .iter()
                .any(|form| QUOTES.iter().any(|quotes| quoted(form, *quotes)))
        };
        self.mounts.iter().find(|target| is_named(target))
    }
}

/// The daemon's own message, if it answered.
pub fn daemon_message(error: &Error) -> Option<&str> {
    match error {
        Error::DockerResponseServerError { message, .. } => Some(message),
        Error::DockerStreamError { error } => Some(error),
        _ => None,
    }
}

/// Whether the response has podman's state "stopped", which is not in the API. A container has it
/// between its end and podman's cleanup.
pub fn is_podmans_stopped(error: &Error) -> bool {
    matches!(error, Error::JsonDataError { message, .. } if message.contains("`stopped`"))
}

pub fn is_gone(error: &Error) -> bool {
    is_status(error, 404)
}

/// The container is in the requested state already, or another request is changing it.
pub fn is_conflict(error: &Error) -> bool {
    is_status(error, 409) || is_status(error, 304)
}

fn is_status(error: &Error, status: u16) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code, .. } if *status_code == status)
}

/// A failure of disk or daemon: another node may succeed.
pub fn is_node_fault(text: &str) -> bool {
    let text = text.to_lowercase();
    [
        "no space left",
        "disk quota",
        "input/output error",
        "read-only file system",
        "cannot allocate memory",
        "too many open files",
        "layer does not exist",
        "operation not permitted",
        "the archive cannot be read further",
    ]
    .iter()
    .any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(command: &str) -> ErrorContext {
        ErrorContext {
            command: command.to_owned(),
            path: "/bin".to_owned(),
            cwd: "/no/such".to_owned(),
            user: "ann:friends".to_owned(),
            mounts: vec!["/data".into(), "/etc/passwd".into()],
        }
    }

    #[test]
    fn mistakes_in_the_words_of_every_runtime() {
        let cases = [
            (
                "run",
                "OCI runtime create failed: container_linux.go:380: starting container process caused: exec: \"run\": executable file not found in $PATH: unknown",
                "command \"run\" not found in the image; PATH is /bin",
            ),
            (
                "run",
                "crun: executable file `run` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that was not found",
                "command \"run\" not found in the image; PATH is /bin",
            ),
            (
                "/opt/run",
                "runc create failed: unable to start container process: exec: \"/opt/run\": stat /opt/run: no such file or directory: unknown",
                "command \"/opt/run\" does not exist in the image",
            ),
            (
                "/bin/plain",
                "runc create failed: unable to start container process: exec: \"/bin/plain\": permission denied: unknown",
                "is not an executable file for user ann:friends",
            ),
            (
                "sh",
                "unable to find user ann: no matching entries in passwd file",
                "user \"ann:friends\" is not in",
            ),
            (
                "sh",
                "unable to find group friends: no matching entries in group file",
                "group \"friends\" is not in",
            ),
            (
                "sh",
                "workdir \"/no/such\" does not exist on container abc",
                "working directory /no/such does not exist",
            ),
            (
                "sh",
                "runc create failed: unable to start container process: error during container init: error mounting \"/tmp/m/1\" to rootfs at \"/etc/passwd\": mount /tmp/m/1:/etc/passwd (via /proc/self/fd/6), flags: 0x5000: not a directory: unknown: Are you trying to mount a directory onto a file (or vice-versa)?",
                "nothing can be mounted at /etc/passwd",
            ),
            (
                "sh",
                "crun: mount `/tmp/m/1` to `etc/passwd`: Not a directory: OCI runtime error",
                "nothing can be mounted at /etc/passwd",
            ),
            ("", "No command specified", "no command was given"),
        ];
        for (command, message, expected) in cases {
            let error = Error::DockerResponseServerError {
                status_code: 400,
                message: message.to_owned(),
            };
            let user_error = context(command).user_error(&error).expect(message);
            assert!(user_error.to_string().contains(expected), "{user_error}");
            assert!(user_error.is_user_error());
        }
    }

    #[test]
    fn faults_of_the_node_are_no_mistakes() {
        for message in [
            "mkdir /var/lib/docker/overlay2/x: no space left on device",
            "error creating overlay mount: no such file or directory",
            "runc create failed: unable to apply cgroup configuration: permission denied",
        ] {
            let error = Error::DockerResponseServerError {
                status_code: 500,
                message: message.to_owned(),
            };
            assert_eq!(context("sh").user_error(&error), None, "{message}");
        }
        assert_eq!(context("sh").user_error(&Error::RequestTimeoutError), None);
    }
}

//! Finds the daemon's socket: from the environment, else at the usual paths.

use std::io;
use std::path::{Path, PathBuf};

use super::Flavour;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{variable} is \"{value}\", and crunch-run needs the daemon of this machine: a socket, like unix:///run/docker.sock"
)]
pub struct SocketError {
    pub variable: &'static str,
    pub value: String,
}

/// `env` looks up a variable; `exists` tests for a file.
pub fn socket(
    flavour: Flavour,
    env: impl Fn(&str) -> Option<String>,
    exists: impl Fn(&Path) -> bool,
) -> Result<PathBuf, SocketError> {
    let variable = match flavour {
        Flavour::Docker => "DOCKER_HOST",
        Flavour::Podman => "CONTAINER_HOST",
    };
    if let Some(value) = env(variable).filter(|value| !value.is_empty()) {
        let path = value.strip_prefix("unix://").unwrap_or(&value);
        if path.starts_with('/') {
            return Ok(path.into());
        }
        return Err(SocketError { variable, value });
    }
    let own = env("XDG_RUNTIME_DIR").filter(|dir| dir.starts_with('/'));
    let in_own = |name: &str| own.as_ref().map(|dir| Path::new(dir).join(name));
    let candidates = match flavour {
        Flavour::Docker => vec![Some("/var/run/docker.sock".into()), in_own("docker.sock")],
        Flavour::Podman => vec![
            Some("/run/podman/podman.sock".into()),
            in_own("podman/podman.sock"),
        ],
    };
    let mut candidates = candidates.into_iter().flatten();
    let usual = candidates.next().unwrap_or_default();
    if exists(&usual) {
        return Ok(usual);
    }
    Ok(candidates.find(|path| exists(path)).unwrap_or(usual))
}

/// Reason why the socket cannot be used, and the remedy.
pub fn advice(flavour: Flavour, socket: &Path, error: &io::Error) -> String {
    let name = flavour.name();
    let hint = match error.kind() {
        io::ErrorKind::NotFound => match flavour {
            Flavour::Docker => "is dockerd running?".to_owned(),
            Flavour::Podman => {
                "start its service: systemctl start podman.socket, or podman system service"
                    .to_owned()
            }
        },
        io::ErrorKind::PermissionDenied => {
            format!("this user may not use it: is it in the group {name}?")
        }
        _ => "is its daemon running?".to_owned(),
    };
    format!("cannot connect to {} ({error}); {hint}", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_comes_before_the_usual_places() {
        let none: &[&str] = &[];
        let own = &["/run/user/7/podman/podman.sock", "/run/user/7/docker.sock"];
        let cases = [
            (Flavour::Docker, Some("unix:///x/y.sock"), none, "/x/y.sock"),
            (Flavour::Docker, Some("/x/y.sock"), none, "/x/y.sock"),
            (Flavour::Docker, Some(""), none, "/var/run/docker.sock"),
            (Flavour::Docker, None, none, "/var/run/docker.sock"),
            (Flavour::Docker, None, own, "/run/user/7/docker.sock"),
            (Flavour::Podman, None, none, "/run/podman/podman.sock"),
            (Flavour::Podman, None, own, "/run/user/7/podman/podman.sock"),
            (Flavour::Podman, Some("unix:///p"), own, "/p"),
        ];
        for (flavour, host, files, expected) in cases {
            let found = socket(
                flavour,
                |name| match name {
                    "XDG_RUNTIME_DIR" => Some("/run/user/7".to_owned()),
                    "DOCKER_HOST" if flavour == Flavour::Docker => host.map(str::to_owned),
                    "CONTAINER_HOST" if flavour == Flavour::Podman => host.map(str::to_owned),
                    _ => None,
                },
                |path| files.iter().any(|file| Path::new(file) == path),
            );
            assert_eq!(found, Ok(PathBuf::from(expected)), "{host:?} {files:?}");
        }
    }

    #[test]
    fn another_machine_s_daemon_is_refused() {
        for host in ["tcp://10.0.0.1:2375", "ssh://there", "relative.sock"] {
            let env = |name: &str| (name == "DOCKER_HOST").then(|| host.to_owned());
            let error = socket(Flavour::Docker, env, |_| false).unwrap_err();
            assert!(error.to_string().contains(host), "{error}");
        }
    }
}

//! Throwaway daemons. `tests/labs/with-daemons` starts one of each for all tests, and names its
//! socket in a variable. A test that finds no such variable starts its own, which ends with the
//! test's process.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Dropping it ends it.
pub struct Daemon {
    pub socket: PathBuf,
    /// The daemon ends when this process's end of the pipe is closed. `None` for one that all tests
    /// share.
    _starter: Option<Child>,
}

pub fn docker() -> &'static Daemon {
    static DAEMON: OnceLock<Daemon> = OnceLock::new();
    DAEMON.get_or_init(|| Daemon::shared("docker"))
}

/// The same daemon, with a socket that belongs to the group of nobody.
pub fn docker_for_nobody() -> &'static Daemon {
    static OPENED: OnceLock<()> = OnceLock::new();
    let daemon = docker();
    OPENED.get_or_init(|| {
        let open = |path: &Path, mode| {
            chown(path, None, Some(65534)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        open(daemon.socket.parent().unwrap(), 0o710);
        open(&daemon.socket, 0o660);
    });
    daemon
}

pub fn podman() -> &'static Daemon {
    static DAEMON: OnceLock<Daemon> = OnceLock::new();
    DAEMON.get_or_init(|| Daemon::shared("podman"))
}

pub fn podman_as_nobody() -> &'static Daemon {
    static DAEMON: OnceLock<Daemon> = OnceLock::new();
    DAEMON.get_or_init(|| Daemon::shared("podman-as-nobody"))
}

impl Daemon {
    /// The daemon that all tests share, or else a new one.
    fn shared(name: &str) -> Self {
        let variable = format!("{}_LAB_SOCKET", name.to_uppercase().replace('-', "_"));
        match std::env::var_os(variable) {
            Some(socket) => Self {
                socket: socket.into(),
                _starter: None,
            },
            None => Self::start(name),
        }
    }

    /// `name.sh` beside this file, in a new directory.
    pub fn start(name: &str) -> Self {
        let prefix = format!(
            "cr-{}-",
            name.chars()
                .filter(char::is_ascii_alphabetic)
                .take(6)
                .collect::<String>()
        );
        // Sockets have short names, so it cannot be in the build directory.
        let dir = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir_in("/tmp")
            .unwrap()
            .keep();
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/integration/contract/{name}.sh"));
        let mut starter = Command::new(script)
            .arg(&dir)
            // Podman's monitors write a file "oom" to the directory that they are started in.
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let socket = dir.join("sock");
        let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
        while UnixStream::connect(&socket).is_err() {
            let has_ended = starter.try_wait().unwrap().is_some();
            assert!(
                !has_ended && Instant::now() < deadline,
                "{name} does not start: {}",
                fs::read_to_string(dir.join("log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            socket,
            _starter: Some(starter),
        }
    }
}

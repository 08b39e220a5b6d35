//! The real Python SDK as client, in a virtual environment with other Python clients.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::up::Up;

const PROGRAM: &str = include_str!("sdk.py");

/// Where the programs of a virtual environment with the SDK are; made once per target directory.
pub fn bin() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(make).clone()
}

fn make() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let venv = test.ancestors().nth(2).unwrap().join("python-clients");
    let python = venv.join("bin/python");
    let ready = venv.join("ready");
    // It cannot be moved: its programs name the place it was made for.
    let place = venv.to_str().unwrap();
    if std::fs::read_to_string(&ready).ok().as_deref() != Some(place) {
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv));
        run(Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "arvados-python-client",
            "crunchstat-summary",
        ]));
        std::fs::write(ready, place).unwrap();
    }
    venv.join("bin")
}

/// What it printed.
fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out
}

#[test]
fn the_python_sdk_runs_a_container_and_reads_its_output() {
    let up = Up::start();
    let image = up.add_image();
    let script = up.dir.path().join("sdk.py");
    std::fs::write(&script, PROGRAM).unwrap();
    let answer = run(Command::new(bin().join("python"))
        .arg(&script)
        .arg(&image)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", up.dir.path())
        .envs(up.environment()));
    assert_eq!(answer, "the words were read: in the beginning\n");
}

//! The real Python SDK as client, in a virtual environment with other Python clients.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::up::Up;

const PROGRAM: &str = include_str!("sdk.py");

/// Directory of a virtual environment's programs with the SDK; made once per target directory.
pub fn bin() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(make).clone()
}

fn make() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let venv = test.ancestors().nth(2).unwrap().join("python-clients");
    let python = venv.join("bin/python");
    let ready = venv.join("ready");
    // A virtual environment cannot be moved, because its programs name its path.
    let path = venv.to_str().unwrap();
    if std::fs::read_to_string(&ready).ok().as_deref() != Some(path) {
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
        std::fs::write(ready, path).unwrap();
    }
    venv.join("bin")
}

/// Runs a command that must succeed. Returns its output.
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
    let environment = up.environment();
    let python = bin().join("python");
    let answer = run(up
        .command(&python)
        .arg(&script)
        .arg(&image)
        .envs(environment.clone()));
    assert_eq!(answer, "the words were read: in the beginning\n");

    // curl and our own programs, with exactly the same variables.
    let ask = "curl -sSf -H \"Authorization: Bearer $ARVADOS_API_TOKEN\" \
        https://$ARVADOS_API_HOST/arvados/v1/users/current";
    let user = run(up.command("sh").args(["-c", ask]).envs(environment.clone()));
    let user: serde_json::Value = serde_json::from_str(&user).unwrap();
    assert_eq!(
        (&user["username"], &user["is_admin"]),
        (&"user".into(), &false.into())
    );
    let dispatch = crate::program::binary("dispatch");
    run(up.command(dispatch).arg("list").envs(environment.clone()));
    // Other HTTPS clients of this shell still have the certificates of the system.
    let (_, bundle) = &environment[1];
    let certificates = std::fs::read_to_string(bundle).unwrap();
    assert!(
        certificates.matches("BEGIN CERTIFICATE").count() > 1,
        "{bundle}"
    );
}

//! The real Python SDK as client, in a virtual environment with other Python clients.

use std::process::Command;

use crate::up::Up;

const PROGRAM: &str = include_str!("sdk.py");

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
    let python = suite_tests::python_clients().join("python");
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
    let dispatch = suite_tests::program::binary("dispatch");
    run(up.command(dispatch).arg("list").envs(environment.clone()));
    // Other HTTPS clients of this shell still have the certificates of the system.
    let (_, bundle) = &environment[1];
    let certificates = std::fs::read_to_string(bundle).unwrap();
    assert!(
        certificates.matches("BEGIN CERTIFICATE").count() > 1,
        "{bundle}"
    );
}

//! `dispatch up` of an ordinary user: what it says that it can do, and limits without the kernel.

use std::os::unix::fs::PermissionsExt;

use arvados_client::ContainerUuid;
use rustix::process::{Signal, kill_process};
use suite_tests::STEP_TIMEOUT;
use suite_tests::processes::{crunch_run_of, sleep_process};
use suite_tests::program::{Program, binary};
use suite_tests::stack::wait_for;

use crate::terminal::on_terminal;
use crate::up::Up;

/// `nobody`, who has no control groups.
const USER: &str = "65534";

#[test]
fn without_an_engine_the_reason_and_a_remedy_are_printed() {
    let up = Up::start_as(USER, "/nowhere");
    let notes = wait_for("the end of the check", STEP_TIMEOUT, || {
        let notes = up.notes();
        notes.contains("mend: ").then_some(notes)
    });
    assert!(notes.contains("no container can run here"), "{notes}");
    assert!(notes.contains("FAIL  engine auto: finds none"), "{notes}");
    assert!(notes.contains("install crun or runc"), "{notes}");
    let info = up.ok(&["info"]);
    assert!(info.contains("Engine      none worked"), "{info}");
    up.add_image();
    let submit = "submit --image busybox:test --wait -- true";
    let (_, shown) = on_terminal(&up, 200, submit, "so the job waits");
    assert!(shown.contains("crunch-run check --offline"), "{shown}");
    let explained = wait_for("the reason", STEP_TIMEOUT, || {
        let explained = up.ok(&["explain", "1"]);
        explained.contains("check --offline").then_some(explained)
    });
    let widest = explained.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|columns| columns <= 400), "{explained}");
    // As long as the check has not ended, nothing is known.
    std::fs::remove_file(up.dir.path().join("state/engine.json")).unwrap();
    let info = up.ok(&["info"]);
    assert!(info.contains("Engine      not known"), "{info}");
}

#[test]
fn memory_is_limited_without_control_groups() {
    let path = std::env::var("PATH").unwrap();
    let up = Up::start_as(USER, &path);
    up.add_image();
    let notes = wait_for("the end of the check", STEP_TIMEOUT, || {
        let notes = up.notes();
        notes.contains("engine ").then_some(notes)
    });
    let limits = "crunch-run watches memory; nothing limits CPUs and processes";
    assert!(notes.contains(limits), "{notes}");
    assert!(notes.contains("containers can have"), "{notes}");
    let info = up.ok(&["info"]);
    assert!(info.contains(limits), "{info}");
    // The state directory of another user may run or not: that is not known.
    let other = std::process::Command::new("/usr/bin/setpriv")
        .args(["--reuid=1", "--regid=1", "--clear-groups", "--"])
        .arg(suite_tests::program::binary("dispatch"))
        .arg("--state-dir")
        .arg(up.dir.path().join("state"))
        .arg("list")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(said.contains("Permission denied"), "{said}");
    let submit = "submit --image busybox:test --memory 24MiB --wait -- tail /dev/zero";
    let arguments: Vec<&str> = submit.split(' ').collect();
    let (code, said) = up.fails(&arguments);
    assert_eq!(code, 137, "{said}");
    assert!(said.contains("killed by its memory limit"), "{said}");
    assert!(said.contains("of 24.0 MiB"), "{said}");
}

/// Together they use no more than the machine has, and each says what the other's jobs hold.
#[test]
fn two_people_share_the_machine() {
    let mut first = Up::start();
    first.add_image();
    wait_for("the directory of the machine", STEP_TIMEOUT, || {
        first.machine().exists().then_some(())
    });
    // So far only its owner may enter the directory around it.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(first.dir.path(), open).unwrap();
    let second = Up::start_on(USER, &first.machine());
    second.add_image();
    let all = std::thread::available_parallelism().unwrap().to_string();
    first.submit(&all, "sleep 100000");
    first.wait_until_running("1");
    second.submit("1", "true");
    let held = format!("jobs of others on this machine hold {all} CPU");
    wait_for("the reason", STEP_TIMEOUT, || {
        let told = second.ok(&["explain", "1"]);
        (told.contains(&held) && told.contains("(of user root)")).then_some(())
    });
    let info: serde_json::Value = serde_json::from_str(&second.ok(&["info", "--json"])).unwrap();
    assert_eq!(info["containers"]["running"], 0, "{info}");
    let others = &info["dispatcher"]["others"]["cpus"];
    assert_eq!(others.to_string(), all, "{info}");
    let shown = second.ok(&["info"]);
    let line = format!("Others      {all} CPU");
    assert!(shown.contains(&line), "{shown}");
    // At the end of a wait, its reason is said.
    let (code, said) = second.fails(&["wait", "1", "--timeout", "1s"]);
    assert_eq!(code, 124);
    assert!(said.contains("waits for 1 CPU"), "{said}");
    first.kill("1");
    second.ok(&["wait", "1"]);
    // And the other way round.
    second.submit(&all, "sleep 100000");
    second.wait_until_running("2");
    first.submit("1", "true");
    wait_for("the reason", STEP_TIMEOUT, || {
        first.ok(&["explain", "2"]).contains(&held).then_some(())
    });
    second.kill("2");
    first.ok(&["wait", "2"]);
    // Who waits longer is next, however long the queue of the other is.
    first.submit(&all, "sleep 100000");
    first.wait_until_running("3");
    second.submit("1", "true");
    wait_for("the reason", STEP_TIMEOUT, || {
        second.ok(&["explain", "3"]).contains(&held).then_some(())
    });
    first.submit(&all, "sleep 100000");
    wait_for("the dispatcher to know the job", STEP_TIMEOUT, || {
        first
            .ok(&["explain", "4"])
            .contains("waits for")
            .then_some(())
    });
    first.ok(&["kill", "3"]);
    second.ok(&["wait", "3"]);
    first.wait_until_running("4");
    first.kill("4");
    // Its server is gone for good. Its worker tries to deliver; what its command held is free.
    first.submit(&all, "sleep 98765");
    first.wait_until_running("5");
    let shown: serde_json::Value =
        serde_json::from_str(&first.ok(&["--json", "show", "5"])).unwrap();
    let container = shown["container"]["uuid"].as_str().unwrap();
    let container = container.parse::<ContainerUuid>().unwrap();
    let command = wait_for("the command", STEP_TIMEOUT, || sleep_process("98765"));
    first.end();
    kill_process(command, Signal::KILL).unwrap();
    second.submit(&all, "true");
    second.ok(&["wait", "4"]);
    let worker = crunch_run_of(&container).expect("it tries to deliver");
    kill_process(worker, Signal::KILL).unwrap();
}

/// The environment of this shell names the server of another person.
#[test]
fn who_has_the_address_of_another_server_is_told() {
    let other = Up::start();
    assert!(
        !other.notes().contains("ARVADOS_API_HOST is"),
        "{}",
        other.notes()
    );
    let mut environment = other.environment();
    let host = environment[0].1.clone();
    let dir = tempfile::tempdir().unwrap();
    let [state, machine] = ["state", "machine"].map(|name| dir.path().join(name));
    let arguments = ["up", "--state-dir", state.to_str().unwrap()];
    let variables = [
        ("ARVADOS_API_HOST", host.as_str()),
        ("DISPATCH_MACHINE_DIR", machine.to_str().unwrap()),
    ];
    let mut own = Program::new("dispatch", &dir.path().join("up"), &arguments, &variables);
    own.start();
    let words = format!("ARVADOS_API_HOST is {host} in this environment");
    wait_for("the note", STEP_TIMEOUT, || {
        own.log_contains(&words).then_some(())
    });
    assert!(own.terminate(STEP_TIMEOUT).success());

    // A person who forgets the certificate is told the variable.
    environment.retain(|(name, _)| *name != "SSL_CERT_FILE");
    let mut list = other.command(binary("dispatch"));
    let list = list.arg("list").envs(environment).output().unwrap();
    let refusal = String::from_utf8_lossy(&list.stderr);
    assert!(refusal.contains("set SSL_CERT_FILE to a file"), "{refusal}");
}

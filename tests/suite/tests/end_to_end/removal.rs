//! `rm`, `image rm` and `gc`: what is removed frees its space, and what is needed stays.

use std::path::Path;

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::wait_for;

use crate::up::Up;

/// Bytes of all blocks of the server.
fn stored_bytes(up: &Up) -> u64 {
    fn size(dir: &Path) -> u64 {
        let entries = std::fs::read_dir(dir).unwrap().flatten();
        let sizes = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
            true => size(&entry.path()),
            false => entry.metadata().unwrap().len(),
        });
        sizes.sum()
    }
    size(&up.dir.path().join("state/api/blocks"))
}

fn gc(up: &Up, more: &str) -> serde_json::Value {
    let line = format!("gc --json --older-than 0 --empty-trash {more}");
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let report: serde_json::Value = serde_json::from_str(&up.ok(&arguments)).unwrap();
    report["report"].clone()
}

#[test]
fn what_is_removed_frees_its_space_and_what_is_needed_stays() {
    const BYTES: u64 = 3 << 20;
    let up = Up::start();
    up.add_image();
    let submit = "submit --image busybox:test --wait -- sh -c";
    let mut arguments: Vec<&str> = submit.split(' ').collect();
    let script = format!("head -c {BYTES} /dev/urandom > random");
    arguments.push(&script);
    up.ok(&arguments);
    let shown: serde_json::Value = serde_json::from_str(&up.ok(&["show", "--json", "1"])).unwrap();
    let output = shown["request"]["output_uuid"].as_str().unwrap();
    let input = format!("result={output}");
    let submit = [
        "submit",
        "--image",
        "busybox:test",
        "--input",
        &input,
        "--",
        "sleep",
        "300",
    ];
    up.ok(&submit);

    // A job on hold needs its input, too.
    let held = [
        "submit",
        "--priority",
        "0",
        "--image",
        "busybox:test",
        "--input",
        &input,
        "--",
        "true",
    ];
    up.ok(&held);
    up.ok(&["kill", "2"]);
    up.fails(&["wait", "2"]);
    let (code, said) = up.fails(&["rm", "1"]);
    assert_eq!(code, 1);
    assert!(
        said.contains("job 1 is left alone: job 3 needs its output"),
        "{said}"
    );
    let (code, said) = up.fails(&["image", "rm", "busybox:test"]);
    assert!(
        code == 1 && said.contains("job 3 needs it"),
        "{code} {said}"
    );
    up.ok(&["kill", "3"]);
    up.ok(&submit);

    // Job 4 has not ended, and needs the output of job 1 and the image.
    let removed = up.dispatch(&["rm", "1-4"]);
    let said = String::from_utf8_lossy(&removed.stderr).into_owned();
    assert!(
        said.contains("job 1 is left alone: job 4 needs its output"),
        "{said}"
    );
    assert!(said.contains("job 4 is left alone: it is"), "{said}");
    let (code, said) = up.fails(&["image", "rm", "busybox:test"]);
    assert!(
        code == 1 && said.contains("job 4 needs it"),
        "{code} {said}"
    );
    gc(&up, "--delete");
    assert!(stored_bytes(&up) > BYTES);
    up.ok(&["kill", "4"]);
    up.fails(&["wait", "4"]);

    up.ok(&["rm", "--all"]);
    assert_eq!(up.ok(&["list", "--all", "-o", "ids"]), "");
    let (code, _) = up.fails(&["show", "4"]);
    assert_eq!(code, 3);
    // No number is given twice.
    let next = up.ok(&[
        "submit",
        "--image",
        "busybox:test",
        "--priority",
        "0",
        "--",
        "true",
    ]);
    assert!(next.starts_with("5 "), "{next}");
    up.ok(&["kill", "5"]);
    up.ok(&["rm", "--all"]);
    assert_eq!(up.ok(&["list", "--all", "-o", "ids"]), "");
    up.ok(&["image", "rm", "busybox:test"]);
    let (code, _) = up.fails(&["image", "rm", "busybox:test"]);
    assert_eq!(code, 3);
    let before = stored_bytes(&up);
    assert!(before > BYTES, "it is in the trash");
    // The container of job 4 needs the input until it has been stopped.
    let counted = wait_for("the end of the container", STEP_TIMEOUT, || {
        let counted = gc(&up, "");
        (counted["bytes"].as_u64().unwrap() > BYTES).then_some(counted)
    });
    assert_eq!(stored_bytes(&up), before, "it was only counted");
    let removed = gc(&up, "--delete");
    assert_eq!(removed["bytes"], counted["bytes"]);
    assert!(stored_bytes(&up) < BYTES / 3, "{removed}");
    // An ordinary user has no right to it.
    let environment = up.environment();
    let refused = up
        .command(suite_tests::program::binary("dispatch"))
        .args(["gc", "--delete"])
        .envs(environment)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
}

/// Clients look an image up by exactly what a workflow names.
#[test]
fn an_image_has_the_long_name_that_was_given_and_goes_with_the_short_one() {
    let up = Up::start();
    up.add_image();
    let root = up.dir.path().join("rootfs");
    let long = "docker.io/busybox:test";
    up.ok(&["image", "add", long, root.to_str().unwrap()]);
    up.ok(&["submit", "--wait", "--image", long, "--", "true"]);
    let shown: serde_json::Value = serde_json::from_str(&up.ok(&["show", "1", "--json"])).unwrap();
    assert_eq!(shown["request"]["container_image"], long, "{shown}");

    let listed: serde_json::Value =
        serde_json::from_str(&up.ok(&["image", "list", "--json"])).unwrap();
    let names: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|i| &i["name"])
        .collect();
    assert_eq!(names, ["busybox"]);
    // The long name follows the short one.
    std::fs::write(root.join("more"), "more").unwrap();
    up.ok(&["image", "add", "busybox:test", root.to_str().unwrap()]);
    let newest = ["submit", "--wait", "--image", long, "--", "cat", "/more"];
    up.ok(&newest);
    let removed: serde_json::Value =
        serde_json::from_str(&up.ok(&["image", "rm", "busybox:test", "--json"])).unwrap();
    assert_eq!(removed["image_removed"], true);
    assert_eq!(up.ok(&["image", "list", "--json"]).trim(), "[]");
}

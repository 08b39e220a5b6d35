//! A full disk of `dispatch up`: it is told, the server starts and answers, and results go on when
//! there is room.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use suite_tests::STEP_TIMEOUT;
use suite_tests::program::binary;
use suite_tests::stack::wait_for;

use crate::up::Up;
use suite_tests::small_disk::SmallDisk;

#[test]
fn results_wait_for_room_and_everyone_says_so() {
    let mut up = Up::start_on_disk(160);
    up.add_image();
    let submit = "submit --image busybox:test -- sh -c";
    let mut arguments: Vec<&str> = submit.split(' ').collect();
    let script = "head -c 5000000 /dev/urandom > random; until [ -e go ]; do sleep 0.05; done";
    arguments.push(script);
    up.ok(&arguments);
    let running = |up: &Up| {
        up.ok(&["show", "--json", "1"])
            .contains(r#""state":"Running""#)
    };
    wait_for("the job to run", STEP_TIMEOUT, || {
        running(&up).then_some(())
    });

    let state = up.dir.path().join("state");
    let mut fill = File::create(state.join("fill")).unwrap();
    while fill.write_all(&[1; 1 << 12]).is_ok() {}
    let scratch = up.dir.path().join("scratch");
    let found = std::process::Command::new("find")
        .arg(&scratch)
        .args(["-name", "random"])
        .output();
    let random = String::from_utf8(found.unwrap().stdout).unwrap();
    let output = std::path::Path::new(random.trim()).parent().unwrap();
    File::create(output.join("go")).unwrap();

    let told = format!("the disk of {} has only ", state.display());
    let explained = up.ok(&["explain", "1"]);
    assert!(explained.contains(&told), "{explained}");
    let listed = up.dispatch(&["list"]);
    assert!(listed.status.success(), "{listed:?}");
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(said.contains(&told), "{said}");
    let (code, said) = up.fails(&["wait", "--timeout", "2s", "1"]);
    assert!(code == 124 && said.contains(&told), "{code} {said}");

    // What can never start is said before, as soon as the dispatcher has looked at it.
    let submitted = up.ok(&[
        "submit",
        "--image",
        "busybox:test",
        "--cpus",
        "100000",
        "--",
        "true",
    ]);
    let never = submitted.split(' ').next().unwrap();
    wait_for("the reason alone", STEP_TIMEOUT, || {
        let (_, said) = up.fails(&["wait", "--timeout", "2s", never]);
        let is_final = said.contains("cannot start as it is");
        (is_final && !said.contains(&told)).then_some(())
    });

    let explained = up.ok(&["explain", never]);
    let sentence = "It cannot start on this machine as it is: kill it";
    assert!(explained.contains(sentence), "{explained}");

    // With no byte left, jobs are killed and removed, and their space freed.
    while fill.write_all(&[1; 1 << 10]).is_ok() {}
    let (code, said) = up.fails(&["put", "/bin/busybox"]);
    let advice = "Remove jobs with 'dispatch rm'";
    assert!(code == 1 && said.contains(advice), "{code} {said}");
    up.ok(&["kill", never]);
    up.ok(&["rm", never]);
    up.ok(&["gc", "--delete", "--empty-trash", "--older-than", "0s"]);

    // What takes the space is shown.
    let info: serde_json::Value = serde_json::from_str(&up.ok(&["info", "--json"])).unwrap();
    let scratch = info["disk_bytes"]["scratch"].as_u64();
    assert!(scratch.is_some_and(|bytes| bytes >= 5_000_000), "{info}");
    let shown = up.ok(&["info"]);
    let storage = shown.lines().find(|line| line.starts_with("Storage"));
    assert!(
        storage.is_some_and(|line| line.contains(" free")),
        "{shown}"
    );

    // The server starts and reads, and can remove what is not needed.
    up.restart();
    assert!(running(&up));
    up.ok(&["gc", "--delete", "--older-than", "0"]);

    drop(fill);
    std::fs::remove_file(state.join("fill")).unwrap();
    up.ok(&["wait", "1"]);
    assert!(up.ok(&["get", "--list", "1"]).contains("random"));
    let listed = up.dispatch(&["list"]);
    assert!(
        !String::from_utf8_lossy(&listed.stderr).contains(&told),
        "{listed:?}"
    );
}

#[test]
fn a_backup_that_finds_no_room_leaves_the_one_before() {
    let up = Up::start();
    let disk = up.dir.path().join("disk");
    let _disk = SmallDisk::mount(disk.clone(), 8);
    let target = disk.join("backup");
    let run = |state: &Path, words: &[&str]| {
        let mut command = Command::new(binary("dispatch-api"));
        let command = command.arg("--state-dir").arg(state).args(words);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let state = up.dir.path().join("state/api");
    let backup = ["backup", target.to_str().unwrap()];
    let put = |name: &str, bytes: usize| {
        let path = up.dir.path().join(name);
        let content: Vec<u8> = (0..bytes).map(|_| fastrand::u8(..)).collect();
        std::fs::write(&path, content).unwrap();
        up.ok(&["put", path.to_str().unwrap()]);
    };
    put("small", 100_000);
    assert_eq!(run(&state, &backup).0, Some(0));
    put("large", 20_000_000);
    let (code, said) = run(&state, &backup);
    assert!(code == Some(1) && said.contains("is full"), "{said}");
    assert_eq!(run(&target, &["fsck"]).0, Some(0));
    let roomy = up.dir.path().join("roomy");
    let roomy = ["backup", roomy.to_str().unwrap()];
    assert_eq!(run(&state, &roomy).0, Some(0));
    let small = disk.join("restored");
    let (code, said) = run(&small, &["restore", roomy[1]]);
    assert!(code == Some(1) && said.contains("is full"), "{said}");
    // No server starts there.
    assert_eq!(run(&small, &["--listen", "127.0.0.2:0"]).0, Some(78));
    // What the failed one copied is used by the next one, and does not disturb a restore.
    let restored = up.dir.path().join("restored");
    assert_eq!(run(&restored, &["restore", backup[1]]).0, Some(0));
}

/// Nobody could make room without it.
#[test]
fn up_starts_where_no_byte_is_free() {
    let mut up = Up::start_wholly_on_disk(64);
    up.add_image();
    let state = up.dir.path().join("state");
    let fill = || {
        let path = state.join("fill");
        let opened = File::options().create(true).append(true).open(path);
        let mut fill = opened.unwrap();
        for size in [1 << 20, 1 << 12, 1] {
            while fill.write_all(&vec![1; size]).is_ok() {}
        }
    };
    fill();
    up.restart_killed();
    fill();
    // It has removed its own files, and others have taken their space.
    up.restart_with(fill);
    let listed = up.dispatch(&["list"]);
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(said.contains("'dispatch rm'"), "{said}");
    std::fs::remove_file(state.join("fill")).unwrap();
    up.ok_line("run --image busybox:test --scratch 1MiB true");
}

/// Space that others took comes back: a job that needs it waits, and is not called impossible.
#[test]
fn a_job_waits_for_scratch_space_that_others_took() {
    let up = Up::start_wholly_on_disk(160);
    up.add_image();
    let fill = up.dir.path().join("state").join("fill");
    std::fs::write(&fill, vec![1; 80 << 20]).unwrap();
    wait_for("the dispatcher to see it", STEP_TIMEOUT, || {
        let info: serde_json::Value = serde_json::from_str(&up.ok(&["info", "--json"])).unwrap();
        let capacity = info["dispatcher"]["capacity"]["scratch"].as_u64();
        capacity.is_some_and(|bytes| bytes < 80 << 20).then_some(())
    });
    // The machine is not idle from now on.
    up.ok_line("submit --image busybox:test --scratch 1MiB -- sleep 100000");
    up.wait_until_running("1");
    let submit = "submit --image busybox:test --scratch 100MiB -- true";
    let submitted = up.dispatch(&submit.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&submitted.stderr).into_owned();
    assert!(said.contains("before there is room on the disk"), "{said}");
    let explained = wait_for("the reason", STEP_TIMEOUT, || {
        let explained = up.ok(&["explain", "2"]);
        explained
            .contains("waits for room on the disk")
            .then_some(explained)
    });
    assert!(!explained.contains("cannot start"), "{explained}");
    // Others do not wait behind it.
    up.ok_line("run --image busybox:test --scratch 1MiB true");
    std::fs::remove_file(fill).unwrap();
    up.ok(&["wait", "2"]);
    up.kill("1");
}

/// A job that is killed while its output waits for room ends, leaves no files, and says why once.
#[test]
fn a_job_killed_while_its_output_waits_for_room_leaves_nothing() {
    let up = Up::start_on_disk(160);
    up.add_image();
    let said = up.dir.path().join("said");
    let script = "head -c 250000000 /dev/urandom > /out/random";
    let mut run = up
        .command(suite_tests::program::binary("dispatch"))
        .args(["run", "--image", "busybox:test", "--", "sh", "-c", script])
        .env("DISPATCH_STATE_DIR", up.dir.path().join("state"))
        .stderr(File::create(&said).unwrap())
        .spawn()
        .unwrap();
    wait_for("the output to wait for room", STEP_TIMEOUT, || {
        let said = std::fs::read_to_string(&said).unwrap();
        said.contains(" has only ").then_some(())
    });
    let explained = up.ok(&["explain", "1"]);
    assert!(explained.contains("it is on the disk twice"), "{explained}");
    up.ok(&["kill", "1"]);
    assert_eq!(run.wait().unwrap().code(), Some(123));
    let (code, said) = up.fails(&["wait", "1"]);
    assert_eq!(code, 123, "{said}");
    let scratch = up.dir.path().join("scratch");
    wait_for("the end of its files", STEP_TIMEOUT, || {
        let left = std::process::Command::new("du")
            .arg("-sk")
            .arg(&scratch)
            .output();
        let left = String::from_utf8(left.unwrap().stdout).unwrap();
        let kib = left.split_whitespace().next()?.parse::<u64>().ok()?;
        (kib < 1000).then_some(())
    });
    let explained = up.ok(&["explain", "1"]);
    assert!(explained.lines().count() <= 6, "{explained}");
    assert!(
        explained.lines().all(|line| line.chars().count() <= 400),
        "{explained}"
    );
    let lines: Vec<&str> = explained.lines().collect();
    let once: std::collections::BTreeSet<&&str> = lines.iter().collect();
    assert_eq!(once.len(), lines.len(), "{explained}");
}

//! The log collection of a real run: its files, the forms that tools parse, and when it is saved.

use std::time::Duration;

use crate::run_lab::{Job, World, can_run, file, finish, lines, signal};
use rustix::process::Signal;
use serde_json::json;

/// A line of statistics with `#` for its numbers.
fn form(line: &str) -> String {
    let words = line.split(' ').map(|word| match word.parse::<f64>() {
        Ok(_) => "#",
        Err(_) => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

const CPU: &str = "cpu # user # sys # cpus";
const CPU_LATER: &str = "cpu # user # sys # cpus -- interval # seconds # user # sys";
const DISK: &str = "statfs # available # used # total";
const DISK_LATER: &str = "statfs # available # used # total -- interval # seconds # used";

#[tokio::test]
async fn statistics_and_the_closing_lines_are_those_that_tools_parse() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let writes = "head -c 300000 /dev/urandom >/out/x; sync /out/x; rm /out/x";
    let job = world.lock_held(writes, "true").await;
    let child = world.start(&job, &["--crunchstat-interval=1s"]);
    for file in ["crunchstat.txt", "hoststat.txt"] {
        // The disk is the last of a record; the second one says what changed since the first.
        world.until_saved_in(&job, file, " used\n").await;
    }
    crate::run_lab::go_on(&job);
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let log = world.log(&job).await;

    let forms = |name: &str| {
        lines(file(&log, name))
            .into_iter()
            .map(form)
            .collect::<Vec<_>>()
    };
    let container = forms("crunchstat.txt");
    let host = forms("hoststat.txt");
    for (name, forms) in [("crunchstat.txt", &container), ("hoststat.txt", &host)] {
        assert!(
            forms[0].starts_with("notice: reading stats from /"),
            "{forms:?}"
        );
        let is_there = |form: &str| forms.iter().any(|f| f == form);
        for form in [CPU, CPU_LATER, DISK, DISK_LATER] {
            assert!(is_there(form), "{form} in {name}: {forms:?}");
        }
        let memory = forms.iter().find(|f| f.starts_with("mem ")).unwrap();
        assert!(memory.ends_with(" # pgmajfault # rss"), "{memory}");
    }
    assert!(host.iter().any(|f| f == "procmem # crunch-run"), "{host:?}");
    assert!(!container.iter().any(|f| f.starts_with("procmem")));

    let story = lines(file(&log, "crunch-run.txt"));
    let position = |beginning: &str| {
        let found = story.iter().position(|line| line.starts_with(beginning));
        found.unwrap_or_else(|| panic!("{beginning:?} in {story:?}"))
    };
    let closing = [
        "Container exited with status code 0",
        "Total CPU usage was ",
        "Maximum disk usage was ",
        "Maximum container memory pgmajfault usage was ",
        "Maximum container memory rss usage was ",
        "Maximum crunch-run memory rss usage was ",
    ];
    let positions = closing.map(position);
    assert!(positions.is_sorted(), "{positions:?} in {story:?}");
    assert!(
        story[positions[4]].ends_with("/134217728 bytes"),
        "{story:?}"
    );
    assert_eq!(story.last(), Some(&"Complete"));
}

/// Waits until the saved log of the running container has `words` in its stdout.
pub async fn until_saved(world: &World, job: &Job, words: &str) {
    let deadline = std::time::Instant::now() + suite_tests::STEP_TIMEOUT;
    loop {
        let files = world.log(job).await;
        let stdout = files.iter().find(|(name, _)| name == "stdout.txt");
        if stdout.is_some_and(|(_, text)| text.contains(words)) {
            return;
        }
        let names: Vec<&String> = files.iter().map(|(name, _)| name).collect();
        assert!(
            std::time::Instant::now() < deadline,
            "{words:?} is not in {names:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_running_container_s_log_is_saved_by_time_by_size_and_on_demand() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "echo ready; head -c 100000 /dev/zero | tr '\\0' x; echo; echo much; read line";
    let fifo = "mkfifo /out/hold; ".to_owned()
        + &script.replace("read line", "cat /out/hold; rm /out/hold");
    for (flags, asks) in [
        (&["--log-update-size=1GiB"][..], true),
        (
            &["--log-update-size=90KiB", "--log-update-period=30s"],
            false,
        ),
        (&["--log-update-size=1GiB", "--log-update-period=1s"], false),
    ] {
        let job = world.lock(&["sh", "-c", &fifo], json!({})).await;
        let child = world.start(&job, flags);
        world.until_logged(&job, "much").await;
        // Saved before the container runs: the node's data can be read at once.
        assert!(
            world
                .log(&job)
                .await
                .iter()
                .any(|(name, text)| name == "node-info.txt" && text.len() > 10)
        );
        if asks {
            signal(&child, Signal::USR1);
        }
        until_saved(&world, &job, "much").await;
        assert_eq!(world.record(&job).await.state.to_string(), "Running");
        let hold = job.dir.join("scratch/files");
        release(&hold);
        let finished = finish(child).await;
        assert_eq!(finished.code, 0, "{}", finished.output);
    }
}

/// Opens the named pipe that the command reads from.
fn release(below: &std::path::Path) {
    let mut dirs = vec![below.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            if entry.file_name() == "hold" {
                drop(
                    std::fs::OpenOptions::new()
                        .write(true)
                        .open(entry.path())
                        .unwrap(),
                );
                return;
            }
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    panic!("no pipe below {}", below.display());
}

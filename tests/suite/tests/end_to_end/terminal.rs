//! What a command that waits shows: on a pseudo-terminal of any width, and elsewhere.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::up::Up;
use suite_tests::STEP_TIMEOUT;
use suite_tests::program::binary;
use suite_tests::stack::wait_for;

/// A machine with so many CPUs is not found.
const IMPOSSIBLE: &str = "submit --image busybox:test --cpus 100000 --wait -- true";
const ADVICE: &str = "goes on: follow it with 'dispatch wait 1' or 'dispatch logs -f 1'";

/// Runs a command of `dispatch` on a terminal with this number of columns, from its first character
/// until it ends by itself or by Ctrl-C, which is typed when it has shown `words`.
pub fn on_terminal(up: &Up, columns: u16, arguments: &str, words: &str) -> (i32, String) {
    let dispatch = binary("dispatch");
    let line = format!(
        "stty rows 24 cols {columns}; exec {} {arguments}",
        dispatch.display()
    );
    let log = up.dir.path().join(format!("terminal-{columns}"));
    let mut script = Command::new("script")
        .args(["--quiet", "--flush", "--return", "--command", &line])
        .arg(&log)
        .env("HOME", up.dir.path())
        .env("DISPATCH_STATE_DIR", up.dir.path().join("state"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let shown = || String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    wait_for("the words on the terminal", STEP_TIMEOUT, || {
        shown().contains(words).then_some(())
    });
    let typed = script.stdin.take().unwrap();
    std::io::Write::write_all(&mut &typed, b"\x03").unwrap();
    let status = script.wait().unwrap();
    (status.code().unwrap(), shown())
}

/// One line follows the job at every width, the impossible is said, and Ctrl-C ends the wait alone.
#[test]
fn a_terminal_has_one_line_that_ctrl_c_ends() {
    let up = Up::start();
    up.add_image();
    for (job, columns) in [0, 40, 60, 80, 200].into_iter().enumerate() {
        let words = "cannot start as";
        let (code, shown) = on_terminal(&up, columns, IMPOSSIBLE, words);
        assert_eq!(code, 130, "{columns}: {shown}");
        let width = if columns == 0 {
            80
        } else {
            usize::from(columns)
        };
        let drawn: Vec<&str> = shown.split("\r\u{1b}[2K").collect();
        // Above the line are those of script and of the submission, and the reason in full.
        let lines = drawn.iter().filter_map(|drawn| drawn.rsplit('\n').next());
        for line in lines.filter(|line| line.contains(" is Queued")) {
            let line = line.trim_end_matches("^C");
            assert!(line.chars().count() <= width, "{columns}: {line:?}");
        }
        let in_full = "it needs 100000 CPUs, and this machine has ";
        let above = shown.lines().filter(|line| line.contains("dispatch: job"));
        assert_eq!(
            above.filter(|line| line.contains(in_full)).count(),
            1,
            "{columns}: {shown}"
        );
        let advice = ADVICE.replace(" 1'", &format!(" {}'", job + 1));
        assert!(
            drawn.last().unwrap().contains(&advice),
            "{columns}: {shown}"
        );
    }
    let listed = up.ok(&["list", "--json"]);
    assert_eq!(listed.matches(r#""state":"Queued""#).count(), 5, "{listed}");
    up.ok(&["submit", "--image", "busybox:test", "--wait", "--", "true"]);
    on_terminal(&up, 120, "logs -f 1", "it needs 100000 CPUs");
    let (_, shown) = on_terminal(&up, 100, "wait 6 1", "is Queued");
    assert!(shown.contains("1 of 2 ended; job 1 is Queued"), "{shown}");
}

/// The line of `run` ends before the first line of the job, and Ctrl-C leaves the job alone.
#[test]
fn run_on_a_terminal_shows_what_the_job_prints() {
    let up = Up::start();
    up.add_image();
    let script = "run --image busybox:test -- sh -c 'echo pri\"\"nted; sleep 300'";
    let (code, shown) = on_terminal(&up, 80, script, "printed");
    assert_eq!(code, 130, "{shown}");
    assert!(shown.contains("dispatch: job 1"), "{shown}");
    assert!(shown.contains(ADVICE), "{shown}");
    // The first line of the file, which names the command, does not have the word.
    let printed = shown.split('\n').find(|line| line.contains("printed"));
    let printed = printed
        .unwrap_or_else(|| panic!("{shown:?}"))
        .rsplit("\u{1b}[2K")
        .next()
        .unwrap();
    assert_eq!(printed.trim(), "printed", "{shown}");
    assert!(
        up.ok(&["show", "--json", "1"])
            .contains(r#""state":"Running""#)
    );
    up.kill("1");
}

/// Whoever is asked for the input of the job is told so.
#[test]
fn input_that_is_typed_is_asked_for() {
    let up = Up::start();
    up.add_image();
    let run = "run --image busybox:test --stdin - -- cat";
    let (code, shown) = on_terminal(&up, 80, run, "Ctrl-D to end it");
    assert_ne!(code, 0, "{shown}");
    assert_eq!(up.ok(&["list", "-o", "ids"]), "", "{shown}");
}

/// Standard output has results only. Standard error says the impossible at once.
#[test]
fn a_pipe_has_results_only() {
    let up = Up::start();
    up.add_image();
    let mut waits = up.command(binary("dispatch"));
    waits
        .args(IMPOSSIBLE.split(' '))
        .env("DISPATCH_STATE_DIR", up.dir.path().join("state"));
    let err = up.dir.path().join("err");
    let waits = waits
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&err).unwrap());
    let waits = waits.spawn().unwrap();
    let said = || std::fs::read_to_string(&err).unwrap();
    let told = wait_for("the reason", STEP_TIMEOUT, || {
        Some(said()).filter(|said| said.ends_with('\n'))
    });
    let expected = "dispatch: job 1 is Queued and cannot start as it is: it needs 100000 CPUs";
    assert!(told.starts_with(expected), "{told}");
    kill_process(Pid::from_child(&waits), Signal::INT).unwrap();
    let output = waits.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.starts_with("1 ") && out.lines().count() == 1, "{out}");
    let told = said();
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.contains(ADVICE), "{told}");
}

/// A list fits the width: columns give way. Where there is no width, it has all of them.
#[test]
fn a_list_fits_the_terminal() {
    let up = Up::start();
    up.add_image();
    let name = "a-name-of-the-usual-length";
    up.ok(&[
        "submit",
        "--image",
        "busybox:test",
        "--name",
        name,
        "--cpus",
        "100000",
        "--",
        "true",
    ]);
    for (columns, last) in [(0, "UUID"), (60, "TIME"), (80, "TIME"), (200, "UUID")] {
        let line = format!(
            "stty rows 24 cols {columns}; {} list",
            binary("dispatch").display()
        );
        let output = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env("HOME", up.dir.path())
            .env("NO_COLOR", "1")
            .env("DISPATCH_STATE_DIR", up.dir.path().join("state"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
        assert_eq!(lines.len(), 2, "{columns}: {shown}");
        assert!(
            lines[0].ends_with(last) && lines[1].contains(name),
            "{columns}: {shown}"
        );
        if columns > 0 {
            assert!(
                lines.iter().all(|l| l.chars().count() <= columns),
                "{shown}"
            );
        }
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
}

/// The list is drawn again and follows the jobs, until Ctrl-C.
#[test]
fn a_list_is_watched_on_a_terminal_only() {
    let up = Up::start();
    up.add_image();
    let arguments: Vec<&str> = IMPOSSIBLE
        .split(' ')
        .filter(|word| *word != "--wait")
        .collect();
    up.ok(&arguments);
    let (code, shown) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| on_terminal(&up, 200, "list --watch", "Cancelled"));
        let log = up.dir.path().join("terminal-200");
        wait_for("the first list", STEP_TIMEOUT, || {
            let shown = std::fs::read_to_string(&log).unwrap_or_default();
            shown.contains("Queued").then_some(())
        });
        up.ok(&["kill", "1"]);
        watching.join().unwrap()
    });
    assert_eq!(code, 130, "{shown}");
    assert!(shown.contains("\u{1b}[H\u{1b}[2J"), "{shown:?}");
    let (code, said) = up.fails(&["list", "--watch"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("needs a terminal"), "{said}");
    let none = up.dispatch(&["list", "--status", "Running"]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert_eq!(said, "no such jobs\n");
}

/// Behind a job that takes the whole machine, each job that waits has its place.
#[test]
fn the_place_in_the_queue_is_shown() {
    let up = Up::start();
    up.add_image();
    let all = std::thread::available_parallelism().unwrap().to_string();
    for (cpus, script) in [(all.as_str(), "sleep 100000"), ("1", "true"), ("1", "true")] {
        up.submit(cpus, script);
        // Each gets its place before the next one is there.
        wait_for("the dispatcher to know the job", STEP_TIMEOUT, || {
            let waiting = up.ok(&["list", "--status", "Queued", "-o", "ids"]);
            let is_known = |job: &str| up.ok(&["explain", job]).contains("Reason from");
            waiting.lines().all(is_known).then_some(())
        });
    }
    let (code, shown) = on_terminal(&up, 200, "wait 3", "of 2 that wait");
    assert_eq!(code, 130, "{shown}");
    let places: Vec<String> = ["2", "3"].map(|job| up.ok(&["explain", job])).to_vec();
    for number in ["It is number 1 of 2", "It is number 2 of 2"] {
        assert!(
            places.iter().any(|text| text.contains(number)),
            "{places:?}"
        );
    }
    // A job that is killed before it starts is not on hold.
    up.ok(&["kill", "2"]);
    up.ok(&["hold", "3"]);
    let info: serde_json::Value = serde_json::from_str(&up.ok(&["info", "--json"])).unwrap();
    assert_eq!(info["containers"]["held"], 1, "{info}");
    up.kill("1");
}

/// While the server does not answer, the line does not say that the job runs.
#[test]
fn the_line_of_an_outage_has_the_last_known_state() {
    let up = Up::start();
    up.add_image();
    let job = up.submit("1", "sleep 100000");
    up.wait_until_running(&job);
    let (code, shown) = on_terminal(&up, 60, "logs -f 1", "job 1 is Running");
    assert!(code == 130 && shown.contains(ADVICE), "{code} {shown}");
    let log = up.dir.path().join("terminal-80");
    let shown = || std::fs::read_to_string(&log).unwrap_or_default();
    let record = up.record();
    let mut children = record["children"].as_array().unwrap().iter();
    let server = children.find(|child| child["name"] == "dispatch-api");
    let server = server.unwrap()["pid"].as_i64().unwrap();
    let server = Pid::from_raw(server as i32).unwrap();
    let (code, all) = std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| on_terminal(&up, 80, "wait 1", "no answer; job 1 was Running"));
        wait_for("the line", STEP_TIMEOUT, || {
            shown().contains("job 1 is Running").then_some(())
        });
        kill_process(server, Signal::STOP).unwrap();
        let ended = waiting.join();
        kill_process(server, Signal::CONT).unwrap();
        ended.unwrap()
    });
    assert!(code == 130 && all.contains("still waiting"), "{code} {all}");
    up.kill(&job);
}

/// A job that may not pass another one names it as people know it.
#[test]
fn who_is_next_is_named_by_its_number() {
    let up = Up::start();
    up.add_image();
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!(cpus > 1, "with one CPU, no job waits behind another one");
    let all = cpus.to_string();
    let first = up.submit("1", "sleep 100000");
    up.wait_until_running(&first);
    let next = up.submit(&all, "true");
    up.ok(&["priority", "900", &next]);
    let behind = up.submit("1", "true");
    let words = format!("waits behind job {next}, which is next");
    wait_for("the reason", STEP_TIMEOUT, || {
        up.ok(&["explain", &behind]).contains(&words).then_some(())
    });
    let (_, said) = up.fails(&["wait", "--timeout", "3s", &behind]);
    assert!(said.contains(&words), "{said}");
    up.kill(&first);
}

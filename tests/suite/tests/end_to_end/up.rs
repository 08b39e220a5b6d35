//! `dispatch up`: all programs on one machine, as a person starts them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use suite_tests::STEP_TIMEOUT;
use suite_tests::image;
use suite_tests::program::{Program, binary};
use suite_tests::small_disk::SmallDisk;
use suite_tests::stack::wait_for;

pub struct Up {
    program: Program,
    /// After the program, which has files there.
    _disk: Option<SmallDisk>,
    pub dir: TempDir,
}

impl Up {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::start_program(program(dir.path(), &[]), dir, None)
    }

    /// With a state directory on a disk of this size, and files of containers elsewhere.
    pub fn start_on_disk(mebibytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = SmallDisk::mount(dir.path().join("state"), mebibytes);
        let [scratch, cache] = ["scratch", "cache"].map(|name| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path.into_os_string().into_string().unwrap()
        });
        let more = ["--scratch-dir", &scratch, "--cache-dir", &cache];
        Self::start_program(program(dir.path(), &more), dir, Some(disk))
    }

    /// With its scratch space on this disk, too.
    pub fn start_wholly_on_disk(mebibytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = SmallDisk::mount(dir.path().join("state"), mebibytes);
        Self::start_program(program(dir.path(), &[]), dir, Some(disk))
    }

    /// Ends the program. Its jobs go on.
    pub fn end(&mut self) {
        self.program.try_terminate(STEP_TIMEOUT);
    }

    /// Ends the program and starts it again.
    pub fn restart(&mut self) {
        self.restart_with(|| ());
    }

    /// The same with something done in between.
    pub fn restart_with(&mut self, between: impl FnOnce()) {
        let starts = self.program.stdout_text().lines().count() / 2;
        assert!(self.program.terminate(STEP_TIMEOUT).success());
        between();
        self.program.start();
        self.wait_until_ready(starts + 1);
    }

    /// Kills the program and starts it again.
    pub fn restart_killed(&mut self) {
        let starts = self.program.stdout_text().lines().count() / 2;
        self.program.kill();
        self.program.start();
        self.wait_until_ready(starts + 1);
    }

    /// The same as another user, who finds other programs in `path`.
    pub fn start_as(user: &str, path: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let machine = dir.path().join("machine");
        Self::start_beside(user, path, dir, &machine)
    }

    /// As another user of the machine whose dispatchers share `machine`.
    pub fn start_on(user: &str, machine: &Path) -> Self {
        let path = std::env::var("PATH").unwrap();
        Self::start_beside(user, &path, tempfile::tempdir().unwrap(), machine)
    }

    /// Where its dispatcher says what its jobs hold.
    pub fn machine(&self) -> PathBuf {
        self.dir.path().join("machine")
    }

    fn start_beside(user: &str, path: &str, dir: TempDir, machine: &Path) -> Self {
        let owned = Command::new("chown").arg(user).arg(dir.path()).status();
        assert!(owned.unwrap().success());
        let (state, home) = (dir.path().join("state"), dir.path().to_owned());
        let program = Program::new(
            "dispatch",
            &dir.path().join("up"),
            &["up", "--state-dir", state.to_str().unwrap()],
            &[
                ("HOME", home.to_str().unwrap()),
                ("PATH", path),
                ("DISPATCH_MACHINE_DIR", machine.to_str().unwrap()),
            ],
        );
        Self::start_program(program.run_as(user, binary("dispatch")), dir, None)
    }

    pub fn start_program(program: Program, dir: TempDir, disk: Option<SmallDisk>) -> Self {
        let mut up = Self {
            program,
            _disk: disk,
            dir,
        };
        up.program.start();
        up.wait_until_ready(1);
        up
    }

    /// Waits until the program has printed its two lines `times` times.
    fn wait_until_ready(&self, times: usize) {
        wait_for("dispatch up", STEP_TIMEOUT, || {
            (self.program.stdout_text().lines().count() == 2 * times).then_some(())
        });
    }

    /// The variables that a shell gets from its two lines.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let names = ["ARVADOS_API_HOST", "SSL_CERT_FILE", "ARVADOS_API_TOKEN"];
        let show = names.map(|name| format!("echo \"${name}\"\n")).concat();
        let output = Command::new("sh")
            .args(["-c", &(self.program.stdout_text() + &show)])
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let values: Vec<&str> = shown.lines().collect();
        assert_eq!(values.len(), names.len(), "{shown}");
        assert!(values.iter().all(|value| !value.is_empty()), "{shown}");
        names
            .into_iter()
            .zip(values.into_iter().map(str::to_owned))
            .collect()
    }

    /// The record of the running programs.
    pub fn record(&self) -> serde_json::Value {
        let text = std::fs::read(self.dir.path().join("state/up.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// What `dispatch up` has said on standard error.
    pub fn notes(&self) -> String {
        self.program.log_text()
    }

    /// The process id of `dispatch up` itself.
    pub fn pid(&self) -> u32 {
        self.program.pid().unwrap()
    }

    pub fn add_image(&self) -> String {
        image::add(&self.environment(), self.dir.path())
    }

    /// Runs a dispatch command of the same user without environment variables.
    pub fn dispatch(&self, args: &[&str]) -> Output {
        self.command(binary("dispatch"))
            .args(args)
            .env("DISPATCH_STATE_DIR", self.dir.path().join("state"))
            .output()
            .unwrap()
    }

    /// A program of a user who knows nothing of this server.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.dir.path())
            .current_dir(self.dir.path());
        command
    }

    /// Runs a command that must succeed. Returns its output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.dispatch(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{args:?}: {stderr}\n{}",
            self.program.log_text()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Submits `sh -c script` with this number of CPUs; returns the number of the job.
    pub fn submit(&self, cpus: &str, script: &str) -> String {
        let line = "submit --image busybox:test --memory 16MiB --cpus";
        let mut arguments: Vec<&str> = line.split(' ').collect();
        arguments.extend([cpus, "--", "sh", "-c", script]);
        let submitted = self.ok(&arguments);
        submitted.split(' ').next().unwrap().to_owned()
    }

    /// [`ok`](Self::ok) for the words of a line.
    pub fn ok_line(&self, line: &str) -> String {
        self.ok(&line.split(' ').collect::<Vec<_>>())
    }

    pub fn wait_until_running(&self, job: &str) {
        wait_for("the job to run", STEP_TIMEOUT, || {
            let running = self.ok(&["list", "--status", "Running", "-o", "ids"]);
            running.lines().any(|line| line == job).then_some(())
        });
    }

    /// Kills the job and waits until nothing of it runs: who ends `dispatch up` before leaves its
    /// crunch-run behind.
    pub fn kill(&self, job: &str) {
        self.ok(&["kill", job]);
        wait_for("the end of the container", STEP_TIMEOUT, || {
            let counts = self.ok(&["info", "--json"]);
            let counts: serde_json::Value = serde_json::from_str(&counts).unwrap();
            let of = |state: &str| counts["containers"][state].as_u64().unwrap();
            (of("running") + of("locked") == 0).then_some(())
        });
    }

    /// Runs a command that must fail. Returns its exit status and stderr.
    pub fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.dispatch(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        let code = output.status.code().unwrap();
        assert_ne!(code, 0, "{args:?} did not fail: {stderr}");
        (code, stderr.trim().to_owned())
    }
}

impl Drop for Up {
    /// Killed, it would leave its programs to the next `dispatch up`.
    fn drop(&mut self) {
        self.program.try_terminate(STEP_TIMEOUT);
    }
}

pub fn program(dir: &Path, more: &[&str]) -> Program {
    let state = dir.join("state");
    let args = [&["up", "--state-dir", state.to_str().unwrap()], more].concat();
    let machine = dir.join("machine");
    // Of its own, because other tests run on this machine.
    let variables = [
        ("HOME", dir.to_str().unwrap()),
        ("DISPATCH_MACHINE_DIR", machine.to_str().unwrap()),
    ];
    Program::new("dispatch", &dir.join("up"), &args, &variables)
}

#[test]
fn one_at_a_time_and_the_next_one_takes_over_what_runs() {
    let mut up = Up::start();
    up.add_image();
    // A second program on the same state fails with one sentence, and the first goes on.
    let (code, said) = up.fails(&["up"]);
    assert_eq!((code, said.lines().count()), (6, 1), "{said}");

    let submitted = up.ok(&[
        "submit",
        "--image",
        "busybox:test",
        "--",
        "sh",
        "-c",
        "sleep 15; echo kept > /out/result",
    ]);
    let job = submitted.split(' ').next().unwrap().to_owned();
    wait_for("the job to run", STEP_TIMEOUT, || {
        up.ok(&["show", "--json", &job])
            .contains(r#""state":"Running""#)
            .then_some(())
    });
    up.restart();
    let found = "dispatch: 1 job from before had begun, and 0 waited";
    assert!(up.notes().contains(found), "{}", up.notes());
    up.ok(&["wait", &job]);
    assert_eq!(up.ok(&["get", &format!("{job}:result"), "-"]), "kept\n");
}

#[test]
fn a_job_from_files_to_files() {
    let up = Up::start();
    up.add_image();
    std::fs::write(up.dir.path().join("words.txt"), "one two three").unwrap();
    let submit = "submit --image docker.io/library/busybox:test --input words=words.txt --memory 32MiB --time 1m --wait -- sh -c";
    let mut args: Vec<&str> = submit.split(' ').collect();
    // Without --workdir, a command starts in the directory that becomes its output.
    args.push("wc -w </input/words >count; echo counted");
    up.ok(&args);
    assert_eq!(up.ok(&["logs", "1"]), "counted\n");
    up.ok(&["get", "1", "result"]);
    let count = std::fs::read_to_string(up.dir.path().join("result/count")).unwrap();
    assert_eq!(count.trim(), "3");
    let list = up.ok(&["list", "--json"]);
    assert!(list.contains(r#""state":"Complete""#), "{list}");
    let cache = |flags: &[&str]| up.ok(&[&["gc", "--cache"], flags].concat());
    assert!(cache(&[]).contains("cache: 1 entries, "));
    // crunch-run may use it for a moment longer.
    wait_for("the cache to be empty", STEP_TIMEOUT, || {
        cache(&["--delete"]);
        cache(&[]).contains("cache: 0 entries, ").then_some(())
    });
    // On a workstation a job is not tried again, unless that is asked for.
    let shown: serde_json::Value = serde_json::from_str(&up.ok(&["show", "--json", "1"])).unwrap();
    assert_eq!(shown["request"]["container_count_max"], 1, "{shown}");
    let events = wait_for("the end in the audit file", STEP_TIMEOUT, || {
        let audit = std::fs::read_to_string(up.dir.path().join("state/audit.log")).ok()?;
        let lines = audit.lines().map(serde_json::from_str);
        let events: Vec<serde_json::Value> = lines.collect::<Result<_, _>>().ok()?;
        (events.len() > 2).then_some(events)
    });
    let names: Vec<&str> = events.iter().filter_map(|e| e["event"].as_str()).collect();
    assert_eq!(names, ["decided_to_run", "dispatched", "ended"]);
    assert_eq!(events[2]["text"], "has ended: Complete, with exit code 0");
    let info = up.ok(&["info"]);
    assert!(info.contains("CPU"), "{info}");
    // What can never start is said at once.
    for (line, words) in [
        (
            "submit --image busybox:test --cpus 1000 -- true",
            "job 2 cannot start as it is: this machine has",
        ),
        (
            "submit --image busybox:test --scratch 900TiB -- true",
            "job 3 cannot start as it is: it needs 900 TiB",
        ),
        ("kill 2", "job 2 is cancelled"),
        ("retry 2", "job 4 cannot start as it is: this machine has"),
    ] {
        let done = up.dispatch(&line.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(said.contains(words), "{line}: {said}");
    }
    // A job that has ended cannot be released.
    let (code, said) = up.fails(&["release", "1"]);
    assert!(code == 1 && said.contains("job 1 is left alone"), "{said}");
}

/// The end of its terminal ends all of it, unless it was started to survive that.
#[test]
fn the_end_of_the_terminal_stops_everything() {
    let up = Up::start();
    let record = up.record();
    let pids = record["children"]
        .as_array()
        .unwrap()
        .iter()
        .map(|child| child["pid"].clone());
    let pids: Vec<String> = pids.map(|pid| format!("/proc/{pid}")).collect();
    let pid = rustix::process::Pid::from_raw(up.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    wait_for("the programs to end", STEP_TIMEOUT, || {
        let is_running = |path: &&String| Path::new(path).exists();
        (pids.len() == 2 && pids.iter().filter(is_running).count() == 0).then_some(())
    });
}

/// Jobs that have ended while another was waited for are not waited for again.
#[test]
fn many_jobs_are_waited_for_at_once() {
    let up = Up::start();
    up.add_image();
    up.submit("1", "echo >first; until [ -e go ]; do sleep 0.05; done");
    for _ in 0..12 {
        up.submit("1", "true");
    }
    let state = up.dir.path().join("state");
    let mut waiting = up.command(binary("dispatch"));
    let mut waiting = waiting
        .args(["wait", "1-13"])
        .env("DISPATCH_STATE_DIR", &state)
        .spawn()
        .unwrap();
    wait_for("the other jobs to end", STEP_TIMEOUT, || {
        let ended = up.ok(&["list", "--status", "Complete", "-o", "ids"]);
        (ended.lines().count() == 12).then_some(())
    });
    // The output directory of job 1.
    let found = Command::new("find")
        .arg(state.join("scratch"))
        .args(["-name", "first"])
        .output()
        .unwrap();
    let first = String::from_utf8(found.stdout).unwrap();
    let output = Path::new(first.trim()).parent().unwrap();
    std::fs::write(output.join("go"), "").unwrap();
    let go = Instant::now();
    assert!(waiting.wait().unwrap().success());
    // One interval of polling for each would be 24 s at least.
    assert!(go.elapsed() < Duration::from_secs(12), "{:?}", go.elapsed());
}

#[test]
fn a_container_with_network_can_verify_the_server() {
    let up = Up::start();
    up.add_image();
    let script = "echo \"<$ARVADOS_API_HOST_INSECURE>\"; cat /etc/arvados/ca-certificates.crt";
    let submit = "submit --image busybox:test --network --wait -- sh -c";
    let mut args: Vec<&str> = submit.split(' ').collect();
    args.push(script);
    up.ok(&args);
    let certificate = up.record()["server"]["certificate"].clone();
    let certificate = std::fs::read_to_string(certificate.as_str().unwrap()).unwrap();
    assert_eq!(up.ok(&["logs", "1"]), format!("<>\n{certificate}"));
}

#[test]
fn what_a_running_job_prints_is_seen_before_any_of_it_is_saved() {
    let up = Up::start();
    up.add_image();
    let job = &*up.submit("1", "echo at work; sleep 300");
    wait_for("the first line", STEP_TIMEOUT, || {
        let printed = up.dispatch(&["logs", job]).stdout;
        (printed == b"at work\n").then_some(())
    });
    let shown = up.ok(&["show", "--json", job]);
    assert!(shown.contains(r#""state":"Running""#), "{shown}");
    let files = up.ok(&["logs", "--files", job]);
    assert!(files.contains("crunch-run.txt"), "{files}");
    up.kill(job);
}

//! The overseer when commands of its scheduler fail or hang, or when it is killed during one. The
//! commands are shell scripts with a queue in a file.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use worker_demand::{Demand, Status, Worker, to_lisp};

const TEST_TIMEOUT: Duration = Duration::from_secs(300);

const SQUEUE: &str = r#"
if [ -e squeue-fails ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
if [ -e squeue-hangs ]; then exec sleep 1000; fi
if [ -e squeue-lies ]; then echo "slurm_load_jobs error: x" >&2; exit 0; fi
echo "squeue: error: NodeNames=n1 CPUs=7 match no Sockets, Sockets*CoresPerSocket. Resetting CPUs." >&2
echo "JOBID|STATE|START_TIME|COMMENT"
cat queue"#;

const SBATCH: &str = r#"
cat >script
echo "$(date +%s.%N) $$" >>sbatch.calls
if [ -e sbatch-hangs ]; then exec sleep 1000; fi
if [ -e sbatch-fails ]; then echo "sbatch: error: no such partition" >&2; exit 1; fi
for word in "$@"; do
    case $word in --comment=*) mark=${word#--comment=} ;; esac
done
number=$(wc -l <sbatch.calls)
echo "$number|PENDING|N/A|$mark" >>queue
echo "$number""#;

const SCANCEL: &str = r#"
echo "$@" >>scancel.calls
shift
for job in "$@"; do echo "^$job|"; done >gone
grep -v -f gone queue >queue.new || true
mv queue.new queue"#;

/// The time in seconds since 1970.
fn now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

struct Fixture {
    dir: tempfile::TempDir,
    flags: Vec<String>,
    overseer: Option<Child>,
}

impl Fixture {
    fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, script) in [("squeue", SQUEUE), ("sbatch", SBATCH), ("scancel", SCANCEL)] {
            let (draft, file) = (dir.path().join("draft"), dir.path().join(name));
            let text = format!(
                "#!/bin/sh\ncd {}\n{}\n",
                dir.path().display(),
                script.trim()
            );
            fs::write(&draft, text).unwrap();
            // Written by another process: a process forked by another test must not have it
            // open.
            let mut install = Command::new("install");
            let done = install.args(["-m", "755"]).args([&draft, &file]).status();
            assert!(done.unwrap().success());
        }
        File::create(dir.path().join("queue")).unwrap();
        let path = dir.path().display();
        let line = format!(
            "--scheduler slurm --file {path}/demand --state-dir {path}/home --poll-interval 100ms --cool-down 1ms {more}"
        );
        Self {
            dir,
            flags: line.split_whitespace().map(str::to_owned).collect(),
            overseer: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dispatch-overseer"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"));
        let path = std::env::var("PATH").unwrap();
        command
            .args(&self.flags)
            .env("PATH", format!("{}:{path}", self.dir.path().display()))
            .stdin(Stdio::null())
            .stderr(log.unwrap());
        command
    }

    fn start(&mut self) {
        self.overseer = Some(self.command().spawn().unwrap());
    }

    fn kill(&mut self) {
        let mut child = self.overseer.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn want(&self, needed: u32, status: Status) {
        let demand = Demand {
            status,
            written_at: now() as u64,
            member_id: "m".into(),
            update_interval: 300,
            needed,
            worker: Worker {
                program: "/w".into(),
                libraries: vec![],
                arguments: vec![],
            },
        };
        fs::write(self.path("demand.new"), to_lisp(&demand)).unwrap();
        fs::rename(self.path("demand.new"), self.path("demand")).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn wait_for(&self, what: &str, mut done: impl FnMut() -> bool) {
        let until = Instant::now() + TEST_TIMEOUT;
        while !done() {
            assert!(
                Instant::now() < until,
                "waited for {what}:\n{}",
                self.read("log")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_for_words(&self, words: &str) {
        self.wait_for(words, || self.read("log").contains(words));
    }

    fn wait_for_calls(&self, count: usize) -> Vec<(f64, i32)> {
        self.wait_for("calls of sbatch", || self.calls().len() >= count);
        self.calls()
    }

    /// Time and pid of each call of sbatch.
    fn calls(&self) -> Vec<(f64, i32)> {
        let text = self.read("sbatch.calls");
        // The last line may be half written.
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let call = |line: &str| {
            let (at, pid) = line.trim().split_once(' ').unwrap();
            (at.parse().unwrap(), pid.parse().unwrap())
        };
        lines.map(call).collect()
    }

    fn jobs(&self) -> usize {
        self.read("queue").lines().count()
    }

    fn set(&self, name: &str) {
        File::create(self.path(name)).unwrap();
    }

    fn unset(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if self.overseer.is_some() {
            self.kill();
        }
    }
}

#[test]
fn a_submission_without_an_answer_is_waited_out() {
    let mut fixture = Fixture::new("--command-timeout 3s --start-uncertainty 4s");
    fixture.set("sbatch-hangs");
    fixture.want(5, Status::InProgress);
    let begun = now();
    fixture.start();
    fixture.wait_for_words(r#"event="start_uncertain""#);
    // The uncertainty counts from the end of the first call, in whole seconds.
    let notes: serde_json::Value = serde_json::from_str(&fixture.read("home/starts.json")).unwrap();
    let uncertain_until = notes["doubtful_until"].as_f64().unwrap();
    assert!(uncertain_until > begun + 5.0, "{uncertain_until} {begun}");
    fixture.wait_for_words("deferral=UncertainStart");
    fixture.unset("sbatch-hangs");
    let calls = fixture.wait_for_calls(2);
    assert!(calls[1].0 >= uncertain_until, "{calls:?} {uncertain_until}");
    fixture.wait_for("the jobs", || fixture.jobs() == 5);
}

#[test]
fn one_whose_overseer_was_killed_meanwhile_too() {
    // Longer than this test runs.
    let mut fixture = Fixture::new("--start-uncertainty 1h");
    fixture.set("sbatch-hangs");
    fixture.want(5, Status::InProgress);
    fixture.start();
    let calls = fixture.wait_for_calls(1);
    let command = format!("/proc/{}/comm", calls[0].1);
    fixture.wait_for("the hang", || {
        fs::read_to_string(&command).is_ok_and(|name| name == "sleep\n")
    });
    fixture.kill();
    fixture.unset("sbatch-hangs");
    fixture.start();
    fixture.wait_for_words("deferral=UncertainStart");
    // The jobs appear late, as with a slow controller: the new overseer must not have started more.
    assert_eq!(fixture.calls().len(), 1);
    let late = (1..=5).map(|n| format!("{n}|RUNNING|{}|x\n", u32::MAX));
    let late: String = late.collect();
    fs::write(fixture.path("queue"), late).unwrap();
    fixture.wait_for_words("wanted: 5 more; jobs: 0 idle, 5 busy, 0 leaving");
    assert_eq!(fixture.calls().len(), 1, "{}", fixture.read("log"));
    kill_process(Pid::from_raw(calls[0].1).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn nothing_is_done_while_jobs_cannot_be_listed() {
    // The uncertainty of a start that timed out must not last for minutes.
    let mut fixture = Fixture::new("--command-timeout 3s --start-uncertainty 1s");
    fixture.set("squeue-fails");
    fixture.want(3, Status::InProgress);
    fixture.start();
    fixture.wait_for_words("Unable to contact slurm controller");
    fixture.set("squeue-hangs");
    fixture.unset("squeue-fails");
    fixture.wait_for_words("squeue did not end");
    fixture.set("squeue-lies");
    fixture.unset("squeue-hangs");
    fixture.wait_for_words("error: x");
    assert!(fixture.calls().is_empty());
    fixture.unset("squeue-lies");
    fixture.wait_for("the jobs", || fixture.jobs() == 3);
    fixture.set("squeue-fails");
    fixture.want(0, Status::Finished);
    fixture.wait_for_words("wanted: finished; jobs: not known");
    assert_eq!(fixture.read("scancel.calls"), "");
    fixture.unset("squeue-fails");
    let mut overseer = fixture.overseer.take().unwrap();
    assert_eq!(overseer.wait().unwrap().code(), Some(0));
    assert_eq!(fixture.jobs(), 0);
}

#[test]
fn a_hundred_and_then_none() {
    let mut fixture = Fixture::new("--max-workers 2000");
    fixture.want(100, Status::InProgress);
    fixture.start();
    fixture.wait_for("a hundred", || fixture.jobs() == 100);
    assert!(fixture.read("script").ends_with("\nexec /w\n"));
    fixture.want(0, Status::InProgress);
    fixture.wait_for("none", || fixture.jobs() == 0);
    let calls = fixture.read("scancel.calls");
    assert!(calls.starts_with("--state=PENDING 100 99 "), "{calls}");
    assert_eq!((fixture.calls().len(), calls.lines().count()), (100, 1));
}

#[test]
fn a_new_master_has_new_workers_and_a_signal_leaves_them() {
    let mut fixture = Fixture::new("");
    fixture.want(2, Status::InProgress);
    fixture.start();
    fixture.wait_for("two", || fixture.jobs() == 2);
    // Simulates a restart of the master on another machine: the two workers would connect to the
    // old one.
    let text = fixture
        .read("demand")
        .replace("(:slave-arguments ())", "(:slave-arguments (\"new\"))");
    fs::write(fixture.path("demand"), text).unwrap();
    fixture.wait_for("two others", || {
        let queue = fixture.read("queue");
        queue.lines().map(|line| &line[..1]).eq(["3", "4"])
    });
    let overseer = fixture.overseer.as_ref().unwrap();
    kill_process(Pid::from_child(overseer), Signal::TERM).unwrap();
    let mut overseer = fixture.overseer.take().unwrap();
    assert_eq!(overseer.wait().unwrap().code(), Some(0));
    assert_eq!(fixture.jobs(), 2);
    assert_eq!(fixture.read("scancel.calls").lines().count(), 1);
}

#[test]
fn one_overseer_at_a_time() {
    let mut fixture = Fixture::new("");
    fixture.start();
    fixture.wait_for_words(r#"event="demand_rejected""#);
    let second = fixture.command().status().unwrap();
    assert_eq!(second.code(), Some(78));
}

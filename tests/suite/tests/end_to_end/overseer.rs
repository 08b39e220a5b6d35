//! dispatch-overseer with a real Slurm, a real HTCondor, and processes of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use worker_demand::{Demand, Status, Worker, to_json, to_lisp};

use suite_tests::STEP_TIMEOUT;
use suite_tests::lab::Lab;
use suite_tests::program::{Program, binary, copy_program};
use suite_tests::stack::wait_for;

/// Maximum number of workers that fit at the same time.
const MAX_CONCURRENT_WORKERS: usize = 3;
/// Parts of the overseer's log lines about the demand file.
const REJECTED: &str = r#"event="demand_rejected""#;
const VALID: &str = r#"event="demand_valid""#;

/// Worker jobs as the scheduler's own commands show them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Jobs {
    idle: BTreeSet<String>,
    busy: BTreeSet<String>,
}

impl Jobs {
    fn counts(&self) -> (usize, usize) {
        (self.idle.len(), self.busy.len())
    }
}

struct Fixture {
    overseer: Program,
    dir: tempfile::TempDir,
    list: Box<dyn Fn() -> Jobs>,
}

fn in_dir(dir: &Path, name: &str) -> PathBuf {
    dir.join(name)
}

fn flags(dir: &Path, scheduler: &str) -> Vec<String> {
    let text = |name: &str| in_dir(dir, name).to_str().unwrap().to_owned();
    let (file, home) = (text("demand.rsc"), text("home"));
    let line = format!(
        "--scheduler {scheduler} --poll-interval 200ms --cool-down 1s --worker-startup-time 1s --finish-wait 2s \
         --stale-after 2 --memory 100MiB --max-workers 6"
    );
    let fixed = line.split_whitespace().map(str::to_owned);
    fixed
        .chain(["--file".into(), file, "--state-dir".into(), home])
        .collect()
}

impl Fixture {
    fn slurm() -> Self {
        let lab = Lab::up("slurm", &["-N", "-n", "1", "-c", "3", "-m", "4000"]);
        let dir = tempfile::tempdir().unwrap();
        let flags = flags(dir.path(), "slurm");
        let args: Vec<&str> = flags.iter().map(String::as_str).collect();
        let env = [("SLURM_CONF", lab.variable("SLURM_CONF"))];
        let overseer = Program::new("dispatch-overseer", &in_dir(dir.path(), "o"), &args, &env);
        let list = move || {
            let listing = lab.run("squeue", &["--noheader", "--array", "--format=%i %T"]);
            let mut jobs = Jobs::default();
            for line in listing.lines() {
                match line.split_once(' ').unwrap() {
                    (id, "PENDING") => jobs.idle.insert(id.to_owned()),
                    (id, "RUNNING") => jobs.busy.insert(id.to_owned()),
                    _ => false,
                };
            }
            jobs
        };
        Self {
            overseer,
            dir,
            list: Box::new(list),
        }
    }

    fn condor() -> Self {
        let lab = Lab::up("condor", &["--slots", "3"]);
        let dir = tempfile::tempdir().unwrap();
        // The pool's user runs the overseer, and its jobs write here.
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let program = in_dir(dir.path(), "dispatch-overseer");
        copy_program(&binary("dispatch-overseer"), &program);
        let flags = flags(dir.path(), "condor");
        let args: Vec<&str> = flags.iter().map(String::as_str).collect();
        // The programs themselves: the first directory of PATH holds wrappers for root.
        let path = lab.path().split_once(':').unwrap().1.to_owned();
        let env = [
            ("CONDOR_CONFIG", lab.variable("CONDOR_CONFIG")),
            ("PATH", path.as_str()),
        ];
        let user = lab.variable("CONDOR_LAB_USER").to_owned();
        let overseer = Program::new("dispatch-overseer", &in_dir(dir.path(), "o"), &args, &env)
            .run_as(&user, program);
        let list = move || {
            let text = lab.run("condor_q", &["-all", "-json"]);
            let ads: Vec<Value> = match text.trim() {
                "" => Vec::new(),
                text => serde_json::from_str(text).unwrap(),
            };
            let mut jobs = Jobs::default();
            for ad in ads {
                let id = format!("{}.{}", ad["ClusterId"], ad["ProcId"]);
                match ad["JobStatus"].as_i64().unwrap() {
                    1 => jobs.idle.insert(id),
                    2 => jobs.busy.insert(id),
                    _ => false,
                };
            }
            jobs
        };
        Self {
            overseer,
            dir,
            list: Box::new(list),
        }
    }

    fn local() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = flags(dir.path(), "local");
        let args: Vec<&str> = flags.iter().map(String::as_str).collect();
        let overseer = Program::new("dispatch-overseer", &in_dir(dir.path(), "o"), &args, &[]);
        let numbers = in_dir(dir.path(), "numbers");
        // Each worker prints its number.
        let list = move || Jobs {
            idle: BTreeSet::new(),
            busy: fs::read_to_string(&numbers)
                .unwrap_or_default()
                .lines()
                .filter_map(|line| line.split(' ').next())
                .filter(|pid| is_alive(pid))
                .map(str::to_owned)
                .collect(),
        };
        Self {
            overseer,
            dir,
            list: Box::new(list),
        }
    }

    fn jobs(&self) -> Jobs {
        (self.list)()
    }

    fn file(&self) -> PathBuf {
        in_dir(self.dir.path(), "demand.rsc")
    }

    fn demand(&self, needed: u32, update_interval: u64) -> Demand {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let numbers = in_dir(self.dir.path(), "numbers");
        // The worker's number; `$$` would be expanded by HTCondor.
        let script = format!(
            "read pid rest </proc/self/stat; echo $pid \"$*\" >>{}; exec sleep 1000",
            numbers.display()
        );
        Demand {
            status: Status::InProgress,
            written_at: now.unwrap().as_secs(),
            member_id: "12.$(reboot) 'a' \"b\"".into(),
            update_interval,
            needed,
            worker: Worker {
                program: "/bin/sh".into(),
                libraries: vec![],
                arguments: vec!["-c".into(), script, "--mw-slave".into()],
            },
        }
    }

    /// Whole or not at all, as a master does it.
    fn write(&self, text: &str) {
        let new = in_dir(self.dir.path(), "demand.tmp");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.file()).unwrap();
    }

    fn want(&self, needed: u32) {
        self.write(&to_lisp(&self.demand(needed, 300)));
    }

    fn wait_for_jobs(&self, idle: usize, busy: usize) -> Jobs {
        let mut last = Jobs::default();
        let what = format!("{idle} idle and {busy} busy jobs");
        let found = poll(|| {
            last = self.jobs();
            (last.counts() == (idle, busy)).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("{what}: {:?}\n{}", self.jobs(), self.overseer.log_text()))
    }

    /// Waits until the overseer has logged `words` `times` times.
    fn wait_for_words(&self, words: &str, times: usize) {
        poll(|| (self.log_count(words) >= times).then_some(()))
            .unwrap_or_else(|| panic!("no {words:?} in:\n{}", self.overseer.log_text()));
    }

    fn log_count(&self, words: &str) -> usize {
        self.overseer.log_text().matches(words).count()
    }

    /// Waits for two reads of the demand file: one of a file that must be rejected, and one of the
    /// good one.
    fn assert_refused(&self, hostile: &str) {
        let good = fs::read_to_string(self.file()).unwrap();
        let (refused, again) = (self.log_count(REJECTED), self.log_count(VALID));
        self.write(hostile);
        self.wait_for_words(REJECTED, refused + 1);
        self.write(&good);
        self.wait_for_words(VALID, again + 1);
    }
}

impl Drop for Fixture {
    /// A cluster ends its jobs; workers of this machine would go on.
    fn drop(&mut self) {
        if self.overseer.is_running() {
            self.overseer.kill();
        }
        for worker in fs::read_dir(in_dir(self.dir.path(), "home/workers"))
            .into_iter()
            .flatten()
        {
            let notes = fs::read(worker.unwrap().path().join("worker.json"));
            let notes: Option<Value> = notes
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok());
            let pid = notes.and_then(|notes| notes["pid"].as_i64());
            if let Some(pid) = pid.filter(|pid| is_alive(&pid.to_string())) {
                let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
            }
        }
    }
}

fn poll<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = std::time::Instant::now() + STEP_TIMEOUT;
    while std::time::Instant::now() < until {
        if let Some(found) = look() {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

fn is_alive(pid: &str) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command.starts_with(b"sleep\0")
}

/// All of it, in the order of a computation's life.
fn workers_follow_the_demand(mut fixture: Fixture) {
    fixture.overseer.start();
    fixture.wait_for_words(REJECTED, 1);
    assert_eq!(fixture.jobs(), Jobs::default());

    fixture.want(5);
    let five = fixture.wait_for_jobs(5 - MAX_CONCURRENT_WORKERS, MAX_CONCURRENT_WORKERS);
    let whole = to_lisp(&fixture.demand(6, 300));
    fixture.assert_refused(&whole[..whole.len() / 2]);
    fixture.assert_refused("(:slaves-needed #.(run-program \"/bin/false\" nil))");
    assert_eq!(fixture.jobs(), five, "what cannot be read changes nothing");

    // The next overseer adopts the workers of a killed one.
    fixture.overseer.kill();
    fixture.overseer.start();
    fixture.assert_refused("(:half");
    fixture.assert_refused("(:half");
    assert_eq!(fixture.jobs(), five);

    // One worker more, and then none: only idle workers are stopped, the newest first.
    fixture.want(1);
    let four = fixture.wait_for_jobs(1, MAX_CONCURRENT_WORKERS);
    assert_eq!(four.busy, five.busy);
    assert_eq!(
        four.idle.first(),
        five.idle.first(),
        "{}",
        fixture.overseer.log_text()
    );
    fixture.write(&to_json(&fixture.demand(0, 300)).unwrap());
    let three = fixture.wait_for_jobs(0, MAX_CONCURRENT_WORKERS);
    fixture.assert_refused("{");
    assert_eq!(three.busy, five.busy);

    // The demand is stale: two workers are wanted, and none is started.
    let words = "wanted: stale";
    let none = fixture.demand(0, 1);
    fixture.write(&to_lisp(&none));
    fixture.wait_for_words(words, 1);
    let old = Demand {
        needed: 2,
        written_at: none.written_at,
        ..none
    };
    fixture.write(&to_lisp(&old));
    fixture.assert_refused("(:half");
    assert_eq!(fixture.jobs(), three);
    fixture.want(2);
    let two_more = fixture.wait_for_jobs(2, MAX_CONCURRENT_WORKERS);
    assert_eq!(two_more.busy, five.busy);

    // Each worker connected once, with the member id that its master expects.
    let numbers = fs::read_to_string(in_dir(fixture.dir.path(), "numbers")).unwrap();
    let numbers: Vec<&str> = numbers
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(_, rest)| rest)
        .collect();
    assert_eq!(
        numbers,
        ["--mw-member-id 12.$(reboot) 'a' \"b\""; MAX_CONCURRENT_WORKERS]
    );

    let finished = Demand {
        status: Status::Finished,
        ..fixture.demand(2, 300)
    };
    fixture.write(&to_lisp(&finished));
    let status = fixture.overseer.end(STEP_TIMEOUT);
    assert_eq!(status.code(), Some(0), "{}", fixture.overseer.log_text());
    assert_eq!(
        fixture.wait_for_jobs(0, MAX_CONCURRENT_WORKERS).busy,
        five.busy,
        "nobody stops busy workers"
    );
}

#[test]
fn slurm_has_as_many_workers_as_a_file_asks_for() {
    workers_follow_the_demand(Fixture::slurm());
}

#[test]
fn htcondor_has_as_many_workers_as_a_file_asks_for() {
    workers_follow_the_demand(Fixture::condor());
}

/// A single machine has no queue, so all wanted workers run.
#[test]
fn a_machine_has_as_many_workers_as_a_file_asks_for_also_over_a_killed_overseer() {
    let mut fixture = Fixture::local();
    fixture.overseer.start();
    fixture.want(5);
    let five = fixture.wait_for_jobs(0, 5);
    // Killed before it recorded all five workers, it would be followed by an overseer that waits
    // for an uncertain start.
    fixture.wait_for_words("jobs: 0 idle, 5 busy", 1);
    fixture.overseer.kill();
    fixture.overseer.start();
    fixture.assert_refused("(:half");
    fixture.assert_refused("(:half");
    assert_eq!(fixture.jobs(), five);
    // Asked for again and again, as a master does: right after their start the five may not be
    // counted yet.
    wait_for("a sixth", STEP_TIMEOUT, || {
        fixture.want(1);
        (fixture.jobs().counts().1 > 5).then_some(())
    });
    // A start that is requested before the next listing is in progress, too.
    fixture.assert_refused("(:half");
    let six = fixture.jobs();
    assert!(six.busy.is_superset(&five.busy));
    fixture.want(1000);
    fixture.wait_for_words("deferral=AtMax", 1);
    fixture.want(0);
    fixture.assert_refused("(:half");
    assert_eq!(fixture.jobs(), six, "busy ones are never stopped");
    let pid = |pid: &String| Pid::from_raw(pid.parse().unwrap()).unwrap();
    for worker in &six.busy {
        kill_process(pid(worker), Signal::KILL).unwrap();
    }
    let finished = Demand {
        status: Status::Finished,
        ..fixture.demand(0, 300)
    };
    fixture.wait_for_words("jobs: 0 idle, 0 busy", 1);
    fixture.write(&to_lisp(&finished));
    assert_eq!(fixture.overseer.end(STEP_TIMEOUT).code(), Some(0));
    wait_for("no worker", STEP_TIMEOUT, || {
        fixture.jobs().busy.is_empty().then_some(())
    });
}

//! dispatch-overseer with a real Slurm, a real HTCondor, and processes of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use demand::{Demand, Status, Worker, to_json, to_lisp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::lab::Lab;
use crate::program::{Program, binary, copy_program};
use crate::stack::wait_for;

const PATIENCE: Duration = Duration::from_secs(90);
/// How many workers fit at once.
const SLOTS: usize = 3;

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

struct Scene {
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
        "--scheduler {scheduler} --interval 200ms --cool-down 1s --settle 1s --finish-wait 2s \
         --stale-after 2 --memory-mib 100 --max 6"
    );
    let fixed = line.split_whitespace().map(str::to_owned);
    fixed
        .chain(["--file".into(), file, "--dir".into(), home])
        .collect()
}

impl Scene {
    fn slurm() -> Self {
        let lab = Lab::up("slurm", &["-N", "-n", "1", "-c", "3", "-m", "4000"]);
        let dir = tempfile::tempdir().unwrap();
        let flags = flags(dir.path(), "slurm");
        let args: Vec<&str> = flags.iter().map(String::as_str).collect();
        let env = [("SLURM_CONF", lab.variable("SLURM_CONF"))];
        let overseer = Program::new("dispatch-overseer", &in_dir(dir.path(), "o"), &args, &env);
        let list = move || {
            let listing = lab.ask("squeue", &["--noheader", "--array", "--format=%i %T"]);
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
        // The programs themselves; the first place holds wrappers for root.
        let path = lab.path().split_once(':').unwrap().1.to_owned();
        let env = [
            ("CONDOR_CONFIG", lab.variable("CONDOR_CONFIG")),
            ("PATH", path.as_str()),
        ];
        let user = lab.variable("CONDOR_LAB_USER").to_owned();
        let overseer = Program::new("dispatch-overseer", &in_dir(dir.path(), "o"), &args, &env)
            .run_as(&user, program);
        let list = move || {
            let text = lab.ask("condor_q", &["-all", "-json"]);
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
        let said = in_dir(dir.path(), "said");
        // Each says its number.
        let list = move || Jobs {
            idle: BTreeSet::new(),
            busy: fs::read_to_string(&said)
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
        let said = in_dir(self.dir.path(), "said");
        // Its own number, without the two dollars that HTCondor would take for something else.
        let script = format!(
            "read pid rest </proc/self/stat; echo $pid \"$*\" >>{}; exec sleep 1000",
            said.display()
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
        found.unwrap_or_else(|| panic!("{what}: {:?}\n{}", self.jobs(), self.overseer.said()))
    }

    /// Until the overseer has said this `times` times.
    fn wait_for_words(&self, words: &str, times: usize) {
        poll(|| (self.said(words) >= times).then_some(()))
            .unwrap_or_else(|| panic!("no {words:?} in:\n{}", self.overseer.said()));
    }

    fn said(&self, words: &str) -> usize {
        self.overseer.said().matches(words).count()
    }

    /// Two looks at least: one at a file that nobody may believe, one at the good one again.
    fn looks(&self, hostile: &str) {
        let good = fs::read_to_string(self.file()).unwrap();
        let (refused, again) = (self.said("is refused"), self.said("is good again"));
        self.write(hostile);
        self.wait_for_words("is refused", refused + 1);
        self.write(&good);
        self.wait_for_words("is good again", again + 1);
    }
}

impl Drop for Scene {
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
    let until = std::time::Instant::now() + PATIENCE;
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
fn a_life(mut scene: Scene) {
    scene.overseer.start();
    scene.wait_for_words("there is no", 1);
    assert_eq!(scene.jobs(), Jobs::default());

    scene.want(5);
    let five = scene.wait_for_jobs(5 - SLOTS, SLOTS);
    let whole = to_lisp(&scene.demand(6, 300));
    scene.looks(&whole[..whole.len() / 2]);
    scene.looks("(:slaves-needed #.(run-program \"/bin/false\" nil))");
    assert_eq!(scene.jobs(), five, "what cannot be read changes nothing");

    // One that was killed is followed by one that finds what is there.
    scene.overseer.kill();
    scene.overseer.start();
    scene.looks("(:half");
    scene.looks("(:half");
    assert_eq!(scene.jobs(), five);

    // One more beside those at work, and then none: only idle ones go, the newest first.
    scene.want(1);
    let four = scene.wait_for_jobs(1, SLOTS);
    assert_eq!(four.busy, five.busy);
    assert_eq!(
        four.idle.first(),
        five.idle.first(),
        "{}",
        scene.overseer.said()
    );
    scene.write(&to_json(&scene.demand(0, 300)).unwrap());
    let three = scene.wait_for_jobs(0, SLOTS);
    scene.looks("{");
    assert_eq!(three.busy, five.busy);

    // Stale: two are wanted, and neither is started.
    let words = "wanted: stale";
    let none = scene.demand(0, 1);
    scene.write(&to_lisp(&none));
    scene.wait_for_words(words, 1);
    let old = Demand {
        needed: 2,
        written_at: none.written_at,
        ..none
    };
    scene.write(&to_lisp(&old));
    scene.looks("(:half");
    assert_eq!(scene.jobs(), three);
    scene.want(2);
    let two_more = scene.wait_for_jobs(2, SLOTS);
    assert_eq!(two_more.busy, five.busy);

    // Each worker came once, and with the member id that its master would ask for.
    let said = fs::read_to_string(in_dir(scene.dir.path(), "said")).unwrap();
    let said: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(_, rest)| rest)
        .collect();
    assert_eq!(said, ["--mw-member-id 12.$(reboot) 'a' \"b\""; SLOTS]);

    let finished = Demand {
        status: Status::Finished,
        ..scene.demand(2, 300)
    };
    scene.write(&to_lisp(&finished));
    let status = scene.overseer.end(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", scene.overseer.said());
    assert_eq!(
        scene.wait_for_jobs(0, SLOTS).busy,
        five.busy,
        "nobody stops busy workers"
    );
}

#[test]
fn slurm_has_as_many_workers_as_a_file_asks_for() {
    a_life(Scene::slurm());
}

#[test]
fn htcondor_has_as_many_workers_as_a_file_asks_for() {
    a_life(Scene::condor());
}

/// Nothing waits on a machine of one's own, so all that is wanted runs.
#[test]
fn a_machine_has_as_many_workers_as_a_file_asks_for_also_over_a_killed_overseer() {
    let mut scene = Scene::local();
    scene.overseer.start();
    scene.want(5);
    let five = scene.wait_for_jobs(0, 5);
    // Killed before it noted that all five came, it would be followed by one that waits out its doubt.
    scene.wait_for_words("jobs: 0 idle, 5 busy", 1);
    scene.overseer.kill();
    scene.overseer.start();
    scene.looks("(:half");
    scene.looks("(:half");
    assert_eq!(scene.jobs(), five);
    // Asked for again and again, as a master does: right after their start the five may not be counted yet.
    wait_for("a sixth", PATIENCE, || {
        scene.want(1);
        (scene.jobs().counts().1 > 5).then_some(())
    });
    // What is asked for once more before this is seen is begun, too.
    scene.looks("(:half");
    let six = scene.jobs();
    assert!(six.busy.is_superset(&five.busy));
    scene.want(1000);
    scene.wait_for_words("more workers are needed than --max allows", 1);
    scene.want(0);
    scene.looks("(:half");
    assert_eq!(scene.jobs(), six, "busy ones are never stopped");
    let pid = |pid: &String| Pid::from_raw(pid.parse().unwrap()).unwrap();
    for worker in &six.busy {
        kill_process(pid(worker), Signal::KILL).unwrap();
    }
    let finished = Demand {
        status: Status::Finished,
        ..scene.demand(0, 300)
    };
    scene.wait_for_words("jobs: 0 idle, 0 busy", 1);
    scene.write(&to_lisp(&finished));
    assert_eq!(scene.overseer.end(PATIENCE).code(), Some(0));
    wait_for("no worker", PATIENCE, || {
        scene.jobs().busy.is_empty().then_some(())
    });
}

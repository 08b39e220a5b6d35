//! A throwaway HTCondor pool whose daemons can be killed, and dispatch-condor on it.
//!
//! HTCondor runs no jobs of root: dispatcher, jobs and containers are those of an ordinary user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use arvados_client::ContainerUuid;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::STEP_TIMEOUT;
use crate::fail_point_dir::FailPointDir;
use crate::lab::Lab;
use crate::program::{Program, binary, copy_program};
use crate::stack::{Servers, Stack, points_in, wait_for};

pub struct Pool {
    pub lab: Lab,
    /// Directory for files of jobs, and for configuration.
    dir: tempfile::TempDir,
}

fn id(kind: &str, user: &str) -> u32 {
    let output = Command::new("id").args([kind, user]).output().unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

impl Pool {
    /// The pool that others use, too: see [`Lab::shared`]. It has one machine of eight CPUs.
    pub fn shared() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let lab = Lab::shared("condor");
        Self { lab, dir }
    }

    pub fn up(args: &[&str]) -> Self {
        Self::with(args, "")
    }

    /// A pool with additional configuration.
    pub fn with(args: &[&str], config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let extra = dir.path().join("extra");
        fs::write(&extra, config).unwrap();
        let mut all = vec!["--extra", extra.to_str().unwrap()];
        all.extend(args);
        let lab = Lab::up("condor", &all);
        Self { lab, dir }
    }

    /// Changes the configuration of the running pool.
    pub fn configure(&self, line: &str) {
        let path = self.lab.variable("CONDOR_CONFIG");
        let text = fs::read_to_string(path).unwrap();
        fs::write(path, format!("{text}\n{line}\n")).unwrap();
        self.lab.run("condor_reconfig", &["-all"]);
    }

    /// A file that jobs may write.
    pub fn notes(&self) -> PathBuf {
        self.dir.path().join("notes")
    }

    /// A directory whose programs dispatchers find before HTCondor's.
    pub fn wrappers(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    /// The lines of that file.
    pub fn noted(&self) -> Vec<String> {
        let notes = fs::read_to_string(self.notes()).unwrap_or_default();
        notes.lines().map(str::to_owned).collect()
    }

    /// The user who submits jobs and runs the dispatcher.
    pub fn user(&self) -> &str {
        self.lab.variable("CONDOR_LAB_USER")
    }

    /// Makes it its user's own.
    pub fn give(&self, path: &Path) {
        let user = self.user();
        chown(path, Some(id("-u", user)), Some(id("-g", user))).unwrap();
    }

    /// A copy of a file that the pool's user owns.
    fn copy(&self, from: &Path, to: &Path, mode: u32) {
        copy_program(from, to);
        fs::set_permissions(to, Permissions::from_mode(mode)).unwrap();
        self.give(to);
    }

    /// The servers and dispatch-condor with `more` arguments.
    pub async fn stack(&self, more: &[&str]) -> Stack {
        Stack::with(|servers, dir| self.dispatcher(servers, dir, "dispatch-condor", more)).await
    }

    /// A dispatch-condor on this pool; `program` names the build.
    pub fn dispatcher(
        &self,
        servers: &Servers,
        dir: &Path,
        program: &'static str,
        more: &[&str],
    ) -> Program {
        self.dispatcher_with(servers, dir, program, more, &[])
    }

    /// The same with additional environment variables.
    pub fn dispatcher_with(
        &self,
        servers: &Servers,
        dir: &Path,
        program: &'static str,
        more: &[&str],
        variables: &[(&'static str, &str)],
    ) -> Program {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        let (jobs, cache) = (dir.join("jobs"), dir.join("cache"));
        for dir in [&jobs, &cache] {
            fs::create_dir(dir).unwrap();
            self.give(dir);
        }
        let of = |value: &Value| Path::new(value.as_str().unwrap()).to_owned();
        let (token, certificate) = (dir.join("dispatch-token"), dir.join("certificate.pem"));
        self.copy(&of(&servers.ready["tokens"]["dispatch"]), &token, 0o600);
        self.copy(&of(&servers.ready["certificate"]), &certificate, 0o644);
        let crunch_run = dir.join("crunch-run");
        self.copy(&binary("crunch-run"), &crunch_run, 0o755);
        let copy = dir.join(program);
        self.copy(&binary(program), &copy, 0o755);
        let (points, own) = (points_in(dir), dir.join("tmp"));
        fs::create_dir_all(&points).unwrap();
        FailPointDir::open_to_all(&points);
        fs::create_dir(&own).unwrap();
        self.give(&own);
        // A crunch-run that is killed leaves its directory there.
        let of_jobs = [
            format!("{}={}", fail_points::VARIABLE, points.display()),
            format!("TMPDIR={}", own.display()),
        ];
        let words = [
            "/usr/bin/env",
            &of_jobs[0],
            &of_jobs[1],
            crunch_run.to_str().unwrap(),
            "--cache-dir",
            cache.to_str().unwrap(),
        ];
        let crunch_run = shlex::try_join(words).unwrap();
        let mut args = vec!["--state-dir", jobs.to_str().unwrap()];
        args.extend(["--token-file", token.to_str().unwrap()]);
        args.extend(["--crunch-run", &crunch_run]);
        args.extend(more);
        let path = format!("{}:{}", self.wrappers().display(), self.path());
        let mut env = vec![
            ("CONDOR_CONFIG", self.lab.variable("CONDOR_CONFIG")),
            ("PATH", path.as_str()),
            ("SSL_CERT_FILE", certificate.to_str().unwrap()),
        ];
        env.extend(variables);
        let dispatcher = servers
            .dispatcher(program, &args, &env)
            .run_as(self.user(), copy);
        self.lab.cancel_jobs_of(dispatcher, &jobs)
    }

    /// All jobs in the queue, once a schedd answers.
    pub fn queue(&self) -> Vec<Value> {
        let answer = wait_for("condor_q to answer", STEP_TIMEOUT, || {
            self.lab.try_run("condor_q", &["-all", "-json"])
        });
        read(&answer)
    }

    /// The PATH of the pool's user.
    pub fn path(&self) -> String {
        // The first directory of PATH holds wrappers for root.
        let path = self.lab.path();
        path.split_once(':').unwrap().1.to_owned()
    }

    /// The container's job in the queue, if there is one.
    pub fn find(&self, container: &ContainerUuid) -> Option<Value> {
        let is_its = |ad: &Value| ad["ContainerUUID"] == container.as_str();
        self.queue().into_iter().find(is_its)
    }

    /// The number of a container's job, as soon as it meets `what`.
    pub fn job(&self, container: &ContainerUuid, what: impl Fn(&Value) -> bool) -> String {
        let ad = wait_for("the container's job", STEP_TIMEOUT, || {
            self.find(container).filter(&what)
        });
        format!("{}.{}", ad["ClusterId"], ad["ProcId"])
    }

    /// Jobs of a container that have left the queue, the newest first.
    pub fn history(&self, container: &ContainerUuid) -> Vec<Value> {
        let constraint = format!("ContainerUUID == \"{container}\"");
        let query = ["-json", "-constraint", &constraint];
        read(&self.lab.run("condor_history", &query))
    }

    /// Waits until the queue is empty.
    pub fn is_empty_soon(&self) {
        wait_for("the queue to be empty", STEP_TIMEOUT, || {
            self.queue().is_empty().then_some(())
        });
    }

    /// Pid of the condor_master, which restarts the other daemons.
    pub fn master(&self) -> Pid {
        let file = Path::new(self.lab.variable("CONDOR_LAB_DIR")).join("master.pid");
        let master = fs::read_to_string(file).unwrap();
        Pid::from_raw(master.trim().parse().unwrap()).unwrap()
    }

    /// The process of a daemon, like `condor_schedd`.
    pub fn daemon(&self, name: &str) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.master());
        let children = wait_for("the daemon", STEP_TIMEOUT, || {
            let children = fs::read_to_string(&children).unwrap();
            let mut of_name = children.split_whitespace().filter(|pid| {
                let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                comm.trim() == name
            });
            of_name.next().map(str::to_owned)
        });
        Pid::from_raw(children.parse().unwrap()).unwrap()
    }

    /// Kills the startd and what it runs, as if its machine had lost power; the master starts it
    /// again.
    pub fn lose_machine(&self) {
        let startd = self.daemon("condor_startd");
        let descendants = descendants(startd);
        for process in [startd].into_iter().chain(descendants) {
            let _ = kill_process(process, Signal::KILL);
        }
    }

    /// Kills a daemon; the master starts it again.
    pub fn kill(&self, name: &str) {
        kill_process(self.daemon(name), Signal::KILL).unwrap();
    }
}

/// All processes below one.
fn descendants(process: Pid) -> Vec<Pid> {
    let file = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(file).unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    children
        .flat_map(|child| [vec![child], descendants(child)].concat())
        .collect()
}

fn read(answer: &str) -> Vec<Value> {
    match answer.trim() {
        "" => Vec::new(),
        text => serde_json::from_str(text).unwrap(),
    }
}

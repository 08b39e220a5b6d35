//! A server, an image and one engine, for a scenario; and the results of a run.

use std::fs;
use std::ops::AsyncFn;

use arvados_client::records::{Container, ContainerState};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::contract::engines::Engine;
use crate::contract::nobody;
use crate::run_lab::{Job, World, finish, go_on, lines};

pub struct Lab {
    pub engine: Engine,
    pub world: World,
}

/// A container that has its final state.
pub struct Ended {
    pub job: Job,
    pub record: Container,
    /// crunch-run's own output.
    pub program_output: String,
    pub log: Vec<(String, String)>,
    pub output: Vec<(String, String)>,
}

/// Plays one scenario with one engine.
pub async fn play(engine: Engine, name: &str, scenario: impl AsyncFn(&Lab)) {
    if engine.differs_in(name) {
        println!("{engine:?} differs here, as docs/engines.md says");
        return;
    }
    if !engine.can_run() {
        return;
    }
    let world = World::new().await;
    scenario(&Lab { engine, world }).await;
}

/// Adds a mount at /go, for a command that waits for `/go/on`.
pub fn with_go(mut more: Value) -> Value {
    more["mounts"] = json!({
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/go": {"kind": "tmp", "capacity": 1 << 20},
    });
    more
}

/// Number of samples that crunch-run has recorded. After the first one it has started the
/// container.
pub fn counted(job: &Job) -> usize {
    let statistics = fs::read_to_string(job.dir.join("log/crunchstat.txt"));
    statistics.map_or(0, |text| text.matches(" mem ").count())
}

pub async fn until_counted(world: &World, job: &Job, times: usize) {
    world
        .until(job, "its use is counted", |_| counted(job) >= times)
        .await;
}

impl Lab {
    /// `sh -c script`, to its final state.
    pub async fn sh(&self, script: &str) -> Ended {
        self.sh_with(script, json!({})).await
    }

    /// `more` is laid over an ordinary request.
    pub async fn sh_with(&self, script: &str, more: Value) -> Ended {
        self.run(&["sh", "-c", script], more).await
    }

    pub async fn run(&self, command: &[&str], more: Value) -> Ended {
        let (job, child) = self.start(command, more, &[]).await;
        self.end(job, child).await
    }

    /// As `sh_with`, but the script begins after the first sample. A container that ends at once
    /// may end before its control group is found.
    pub async fn sh_when_counted(&self, script: &str, more: Value) -> Ended {
        let script = format!("until [ -e /go/on ]; do sleep 0.05; done; {script}");
        let (job, child) = self.start(&["sh", "-c", &script], with_go(more), &[]).await;
        until_counted(&self.world, &job, 1).await;
        go_on(&job);
        self.end(job, child).await
    }

    pub async fn start(&self, command: &[&str], more: Value, flags: &[&str]) -> (Job, Child) {
        let job = self.world.lock(command, more).await;
        let child = self.start_job(&job, flags);
        (job, child)
    }

    pub fn start_job(&self, job: &Job, flags: &[&str]) -> Child {
        self.program(job, flags).spawn().unwrap()
    }

    pub fn program(&self, job: &Job, flags: &[&str]) -> Command {
        let mut program = match self.engine.is_nobodys() {
            true => nobody::program(&self.world, job),
            false => self.world.program(job, &[]),
        };
        program.args(flags).args(self.engine.flags());
        program
    }

    /// Waits for the end; checks that the record is final, and nothing is left on the node.
    pub async fn end(&self, job: Job, child: Child) -> Ended {
        let finished = finish(child).await;
        assert_eq!(finished.code, 0, "{}", finished.output);
        let record = self.world.record(&job).await;
        let left = self.engine.left_overs(&job.uuid).await;
        assert!(left.is_empty(), "{left:?} is left");
        let log = self.world.log(&job).await;
        let output = match &record.output {
            Some(_) => self.world.output(&job).await,
            None => Vec::new(),
        };
        Ended {
            job,
            record,
            program_output: finished.output,
            log,
            output,
        }
    }

    /// The busybox image with another configuration, as a collection.
    pub async fn image(&self, config: Value) -> String {
        let (archive, id) = crate::engine_lab::busybox_archive(config);
        self.image_of(&archive, &id).await
    }

    pub async fn image_of(&self, archive: &[u8], id: &str) -> String {
        let name = format!("{id}.tar");
        self.world.collection(&[(&name, archive)]).await.to_string()
    }
}

impl Ended {
    /// The exit code of a command that ran to its own end.
    pub fn code(&self) -> i32 {
        assert_eq!(
            self.record.state,
            ContainerState::Complete,
            "{:?} {}",
            self.record.runtime_status,
            self.program_output
        );
        self.record.exit_code.expect("an exit code")
    }

    /// Lines of the log of stdout, of a command that ended with 0.
    pub fn stdout(&self) -> Vec<&str> {
        assert_eq!(
            self.code(),
            0,
            "{:?} {}",
            self.stderr(),
            self.program_output
        );
        self.lines("stdout.txt")
    }

    pub fn stderr(&self) -> Vec<&str> {
        self.lines("stderr.txt")
    }

    /// Lines of crunch-run's log about the container.
    pub fn story(&self) -> Vec<&str> {
        self.lines("crunch-run.txt")
    }

    pub fn lines(&self, name: &str) -> Vec<&str> {
        let found = self.log.iter().find(|(path, _)| path == name);
        found.map_or_else(Vec::new, |(_, text)| lines(text))
    }

    /// Why it was cancelled before it ran.
    pub fn refusal(&self) -> &str {
        assert_eq!(
            self.record.state,
            ContainerState::Cancelled,
            "{}",
            self.program_output
        );
        assert_eq!(self.record.exit_code, None);
        self.record.runtime_status.error.as_deref().unwrap_or("")
    }

    /// The error a container has that ran.
    pub fn error(&self) -> &str {
        self.record.runtime_status.error.as_deref().unwrap_or("")
    }
}

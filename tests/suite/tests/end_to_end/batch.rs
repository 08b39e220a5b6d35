//! A batch of containers that each report their start, and the check that each completed and
//! started once.

use arvados_client::ContainerUuid;
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::{Stack, complete};
use suite_tests::start_log::{Gate, StartLog};

pub struct Batch {
    starts: StartLog,
    pub jobs: Vec<(String, ContainerUuid)>,
}

impl Batch {
    pub async fn submit(stack: &Stack, count: usize, seconds: f32) -> Self {
        let mut batch = Self {
            starts: StartLog::listen(),
            jobs: Vec::new(),
        };
        for _ in 0..count {
            batch.add(stack, seconds).await;
        }
        batch
    }

    /// Submits a container that runs until the gate is opened.
    pub async fn of_one_behind(gate: &Gate, stack: &Stack) -> Self {
        let mut batch = Self {
            starts: StartLog::listen(),
            jobs: Vec::new(),
        };
        // The exit status of the connection does not matter.
        let work = format!("{{ {} || true; }}", gate.script());
        batch.add_working(stack, &work).await;
        batch
    }

    pub async fn add(&mut self, stack: &Stack, seconds: f32) -> ContainerUuid {
        self.add_working(stack, &format!("sleep {seconds}")).await
    }

    async fn add_working(&mut self, stack: &Stack, work: &str) -> ContainerUuid {
        let name = format!("b{}", self.jobs.len());
        let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true}});
        let script = self.starts.script_of(&name, work);
        let (_, container) = stack.submit(&name, &script, network).await;
        self.jobs.push((name, container.clone()));
        container
    }

    /// Number of containers that have started so far.
    pub fn started(&self) -> usize {
        let started = |(name, _): &&(String, ContainerUuid)| self.starts.count(name) > 0;
        self.jobs.iter().filter(started).count()
    }

    pub fn starts_of(&self, name: &str) -> u32 {
        self.starts.count(name)
    }

    /// Waits for their ends: each is Complete with its result, and was started once.
    pub async fn all_complete_once(&self, stack: &Stack) {
        for (name, container) in &self.jobs {
            let record = stack.end(container, STEP_TIMEOUT).await;
            let output = complete(&record).output.clone().unwrap().to_string();
            let result = stack.read(&output, "result").await;
            assert_eq!(result, format!("done {name}\n"));
            assert_eq!(self.starts.count(name), 1, "{name} ({container})");
        }
    }
}

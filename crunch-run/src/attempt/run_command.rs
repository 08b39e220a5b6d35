//! Runs the command of a container that is created: starts it, samples its resource use and waits
//! for its end. In: the container, the record. Out: how the command ended and what it used.

use std::path::Path;
use std::time::Duration;

use fail_points::fail_point;

use super::claim::Claim;
use super::context::Attempt;
use super::locked_phase::Running;
use super::runtime_status::Status;
use super::wait_for_command::{Monitor, MonitorEnd};
use crate::inputs::arv_mount::ArvMount;
use crate::limits::Watchdog;
use crate::logs::{HOST_STATISTICS, STATISTICS};
use crate::stats::{SampleTarget, Sampler, Summary, UsageSource};
use crate::verdict::{Cause, Ending};
use container_engine::Container;

impl Attempt<'_> {
    /// Starts the command and monitors it until it ends.
    pub async fn run_command(
        &self,
        running: &Running,
        claim: &Claim,
        tree: Option<&ArvMount>,
        status: &Status,
    ) -> (MonitorEnd, Summary) {
        let container = &*running.container;
        self.log("Starting container");
        if let Err(error) = container.start().await {
            let ending = Ending::NotStarted {
                reason: error.to_string(),
                by_request: error.is_user_error(),
            };
            return (MonitorEnd::Ended(ending), Summary::default());
        }
        let max_run_time = claim.record.scheduling_parameters.max_run_time;
        let max_run_time = (max_run_time > 0).then(|| Duration::from_secs(max_run_time));
        let watchdog = max_run_time.and_then(|time| self.watchdog(container, time));
        fail_point("run.started");
        let sampler = self.sampler(running, claim);
        let monitor = Monitor {
            container,
            client: &self.client,
            uuid: &self.settings.uuid,
            own_token: &claim.own_token,
            max_run_time,
            grace: self.settings.stop_grace,
            usage_limits: &running.usage_limits,
            tree,
            signals: &self.signals,
            status,
            run_log: &self.run_log,
        };
        let mut end = monitor.run().await;
        if let (MonitorEnd::Ended(Ending::Exited(exit)), Some(limit)) = (&end, max_run_time)
            && watchdog.is_some_and(|watchdog| watchdog.has_fired())
        {
            end = MonitorEnd::Ended(Ending::Stopped {
                cause: Cause::MaxRunTime(limit),
                exit: Some(*exit),
            });
        }
        let usage = match sampler {
            Some(sampler) => sampler.finish().await,
            None => Summary::default(),
        };
        (end, usage)
    }

    /// Starts the watchdog, which kills the container if everything else hangs.
    fn watchdog(&self, container: &dyn Container, max_run_time: Duration) -> Option<Watchdog> {
        let after = Watchdog::deadline(
            max_run_time,
            self.settings.stop_grace,
            self.settings.kill_after,
        );
        let run_log = self.run_log.clone();
        Watchdog::start(container.cgroup()?, after, move |text| run_log.write(text))
    }

    fn sampler(&self, running: &Running, claim: &Claim) -> Option<Sampler> {
        let log = match self.logs.open(STATISTICS) {
            Ok(log) => log,
            Err(error) => {
                self.log(format!("Could not start statistics: {error}"));
                return None;
            }
        };
        let source = UsageSource::of(&*running.container)?;
        let subject = SampleTarget {
            source,
            pid: running.container.pid(),
            scratch: running.fetched.staged.output_dir.clone(),
            memory_limit: claim.record.runtime_constraints.ram,
            processes: vec![],
        };
        let period = self.settings.statistics_period;
        Some(Sampler::start(subject, log, self.run_log.clone(), period))
    }

    /// Samples crunch-run itself. Errors are ignored.
    pub fn host_statistics(&self, scratch: &Path) -> Option<Sampler> {
        let log = self.logs.open(HOST_STATISTICS).ok()?;
        let subject = SampleTarget::this_program(scratch.to_owned()).ok()?;
        let period = self.settings.statistics_period;
        Some(Sampler::start(subject, log, self.run_log.clone(), period))
    }
}

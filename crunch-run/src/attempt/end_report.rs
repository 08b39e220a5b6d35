//! Writes down how a command ended: the lines of the log about its end and its use of resources,
//! `result.json`, and a broken node.

use std::time::Duration;

use super::claim::Claim;
use super::context::Attempt;
use super::runtime_status::Status;
use crate::logs::{Pump, RESULT};
use crate::stats::{Sampler, Summary};
use crate::verdict::result::{self, ResultInput};
use crate::verdict::{self, Verdict, VerdictKind};
use container_engine::Exit;

/// Timeout for pipes that stay open after the container's end.
const PIPE_CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

impl Attempt<'_> {
    pub(super) async fn report_broken_node(&self, verdict: &Verdict) {
        if verdict.kind == VerdictKind::BrokenNode
            && let Some(error) = &verdict.error
        {
            let hook = &self.settings.broken_node_hook;
            hook.run(&error.sentence, &self.run_log).await;
        }
    }

    pub(super) async fn log_host_usage(&self, host: Option<Sampler>) {
        if let Some(host) = host {
            for line in host.finish().await.process_lines() {
                self.log(line);
            }
        }
    }

    pub(super) fn log_usage(&self, exit: Option<&Exit>, usage: &Summary, claim: &Claim) {
        if let Some(exit) = exit {
            self.log(verdict::describe_exit(exit));
        }
        for line in usage.lines(claim.record.runtime_constraints.ram) {
            self.log(line);
        }
        if let Some(peak) = exit.and_then(|exit| exit.peak_memory) {
            let whose = match exit.is_some_and(|exit| exit.job_group.is_some()) {
                true => "memory of its job's control group, with cache",
                false => "container memory with cache",
            };
            self.log(format!(
                "Maximum {whose}, as the kernel counted it, was {peak} bytes"
            ));
        }
    }

    pub(super) fn write_result(&self, result: &ResultInput<'_>) {
        if let Err(error) = self.logs.write(RESULT, &result::to_bytes(&result.value())) {
            self.log(format!("{RESULT} cannot be written: {error}"));
        }
    }

    pub(super) fn log_verdict(&self, verdict: &Verdict) {
        for reason in verdict.error.iter().chain(&verdict.warning) {
            self.log(format!("{}\n{}", reason.sentence, reason.detail));
        }
        self.log(self.timings.line());
        self.run_log.close(verdict.state.as_str());
    }

    pub(super) async fn drain(&self, name: &str, pump: Option<Pump>, status: &Status) {
        let Some(pump) = pump else {
            return;
        };
        let pumped = pump.finish(PIPE_CLOSE_TIMEOUT).await;
        if pumped.dropped > 0 {
            self.log(format!(
                "The log of {name} is not complete: {} bytes are left out",
                pumped.dropped
            ));
        }
        if let Some(error) = pumped.error {
            self.warn(
                status,
                format!("the log of {name} is not complete: {error}"),
            );
        }
    }
}

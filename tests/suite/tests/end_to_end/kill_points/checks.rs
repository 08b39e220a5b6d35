//! Checks after a round of kills: each container's record, and that nothing of the containers is
//! left.

use std::time::Instant;

use arvados_client::filter::Query;
use arvados_client::records::{Authorization, ContainerState};
use arvados_client::{ContainerUuid, scopes};
use jiff::Timestamp;
use serde_json::Value;

use super::rounds::{Job, KillTarget, RECORD_POLL_INTERVAL, Victim};
use super::tables::{ExpectedEnd, all};
use crate::leftovers;
use suite_tests::STEP_TIMEOUT;
use suite_tests::fail_point_dir::PassedPoint;
use suite_tests::stack::complete;

impl KillTarget {
    /// Checks that a container ended as the kills of its round require.
    pub(super) async fn check_record(&mut self, victim: Victim, job: &Job, killed: &[PassedPoint]) {
        let Job {
            name, container, ..
        } = job;
        let record = self.record(victim, container).await;
        let deaths: Vec<&PassedPoint> = killed
            .iter()
            .filter(|death| death.arguments.contains(container.as_str()))
            .collect();
        let context = format!("{name} {record:?} after {deaths:?}");
        let starts = self.starts.count(name);
        assert!(starts <= 1, "started {starts} times: {context}");
        let running = self.times_running(container).await;
        assert!(running <= 1, "{running} times Running: {context}");
        assert_eq!(record.locked_by_uuid, None, "{context}");
        let fatal = deaths.iter().any(|death| {
            let mut points = all().filter(|point| point.name == death.point);
            points.any(|point| match point.fate {
                ExpectedEnd::Completes => false,
                ExpectedEnd::Cancelled => true,
                ExpectedEnd::Delivered => !self.delivers,
            })
        });
        if job.unwanted || fatal {
            assert_eq!(record.state, ContainerState::Cancelled, "{context}");
        }
        if fatal && !job.unwanted {
            let why = record.runtime_status.error.clone().unwrap_or_default();
            assert!(why.contains(self.verdict), "{why}: {context}");
        }
        if !job.unwanted && !fatal {
            assert_eq!(record.state, ContainerState::Complete, "{context}");
            let output = complete(&record).output.clone().unwrap().to_string();
            let result = self.stack.read(&output, "result").await;
            assert_eq!(result, format!("done {name}\n"));
            assert_eq!((starts, running), (1, 1), "{context}");
        }
    }

    /// Counts how often the record became Running, by the server's log of its changes.
    async fn times_running(&self, container: &ContainerUuid) -> usize {
        let query =
            Query::new()
                .filter("object_uuid", "=", container)
                .filter("event_type", "=", "update");
        let trail: Vec<Value> = self
            .root
            .all("logs", query, |entry: &Value| {
                entry["uuid"].as_str().unwrap_or_default()
            })
            .await
            .unwrap();
        let state = |entry: &Value, when: &str| entry["properties"][when]["state"].clone();
        trail
            .iter()
            .filter(|entry| {
                state(entry, "old_attributes") != "Running"
                    && state(entry, "new_attributes") == "Running"
            })
            .count()
    }

    /// Waits until no token, process, control group, mount or engine record of any container is
    /// left.
    pub(super) async fn assert_clean(&mut self, victim: Victim) {
        let until = Instant::now() + STEP_TIMEOUT;
        loop {
            self.restart_dead(victim);
            let mut found = leftovers::cgroups_mounts_and_records(&self.containers);
            found.extend(
                self.processes()
                    .into_iter()
                    .map(|(pid, words)| format!("{pid} {words}")),
            );
            found.extend(self.live_tokens().await);
            if found.is_empty() {
                return;
            }
            assert!(
                Instant::now() < until,
                "left: {found:#?}\n{}",
                self.stack.dispatcher.log_text()
            );
            tokio::time::sleep(RECORD_POLL_INTERVAL).await;
        }
    }

    /// Ends the rounds, and waits until no file in the target's directories has a container's name.
    pub async fn finish_clean(mut self, victim: Victim) {
        self.assert_clean(victim).await;
        let until = Instant::now() + STEP_TIMEOUT;
        loop {
            self.restart_dead(victim);
            let found = leftovers::paths_naming(&self.places, &self.containers);
            if found.is_empty() {
                return;
            }
            assert!(
                Instant::now() < until,
                "left: {found:#?}\n{:#?}\n{}",
                leftovers::contents_of(&found),
                self.stack.dispatcher.log_text()
            );
            tokio::time::sleep(RECORD_POLL_INTERVAL).await;
        }
    }

    /// Processes of the stack, without its two servers.
    pub(super) fn processes(&self) -> Vec<(u32, String)> {
        let servers = [self.stack.api.pid(), self.stack.dispatcher.pid()];
        let mut found = leftovers::processes(self.stack.dir.path());
        found.retain(|(pid, _)| !servers.contains(&Some(*pid)));
        found
    }

    async fn live_tokens(&self) -> Vec<String> {
        let tokens = self
            .root
            .all(
                "api_client_authorizations",
                Query::new(),
                |t: &Authorization| t.uuid.as_str(),
            )
            .await;
        let now = Timestamp::now();
        let lives = |token: &Authorization| {
            scopes::attempt_container(&token.scopes).is_some()
                && token.expires_at.is_none_or(|end| end > now)
        };
        match tokens {
            Ok(tokens) => tokens
                .iter()
                .filter(|token| lives(token))
                .map(|token| format!("token {}", token.uuid))
                .collect(),
            Err(error) => vec![format!("the server does not tell its tokens: {error}")],
        }
    }
}

//! Brings requests up to date with a container, a few in each write.
//!
//! A container can have any number of requests, and its command can make any number, so not all of
//! them follow a change of the container in the write that changes it: everybody else would wait.
//! That write does the first ones. A row of `follow_ups` remembers how far it came, and the writer
//! does the rest in turns with the writes of clients.

use fail_points::fail_point;
use tracing::error;

use crate::container::{finalize, priority, request_logs, retry};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::CONTAINERS;
use crate::store::follow_up_progress::{FollowUp, Progress};
use crate::store::transaction::Tx;

/// Lets the first requests follow what this write changed. It is the end of each write, which fails
/// if one of them cannot follow.
pub fn run(tx: &Tx<'_>) -> Result<()> {
    while let Some(progress) = next_queued(tx) {
        go_on(tx, progress, follow)?;
    }
    Ok(())
}

/// Takes what was queued last.
fn next_queued(tx: &Tx<'_>) -> Option<Progress> {
    let (kind, container_uuid) = tx.effects().follow_ups.pop()?;
    Some(Progress::new(kind, container_uuid))
}

/// Goes on with what earlier writes have begun, as far as one write may.
pub fn run_batch(tx: &Tx<'_>) -> Result<()> {
    let mut begun = false;
    loop {
        let progress = match next_queued(tx) {
            Some(queued) => Some(queued),
            None if tx.effects().is_unfinished => None,
            None => Progress::first(tx.conn)?,
        };
        begun |= progress.is_some();
        // A container whose requests are not finished then is the last in line.
        match progress {
            Some(progress) => go_on(tx, progress, follow_or_log)?,
            None => break,
        }
    }
    if begun {
        fail_point("api.follow-up.before-commit");
    }
    Ok(())
}

/// Lets requests follow until none is left or the write has done enough, and saves how far it came.
fn go_on(
    tx: &Tx<'_>,
    mut progress: Progress,
    follow: impl Fn(&Tx<'_>, &mut Progress, &Record) -> Result<()>,
) -> Result<()> {
    let mut next = progress.next_request(tx.conn)?;
    while let Some(request) = next.take_if(|_| tx.take_turn()) {
        progress.after = (
            request.text("created_at").to_owned(),
            request.uuid().to_owned(),
        );
        follow(tx, &mut progress, &request)?;
        next = progress.next_request(tx.conn)?;
    }
    if let Some(retry) = &progress.retry_uuid {
        priority::refresh(tx, retry)?;
        let retry = tx.fetch(&CONTAINERS, retry)?;
        if let Some(ended) = retry.filter(finalize::has_ended) {
            tx.queue_follow_up(FollowUp::End, ended.uuid());
        }
    }
    if next.is_some() {
        tx.effects().is_unfinished = true;
        return progress.save(tx.conn);
    }
    progress.remove(tx.conn)
}

/// Lets one request follow. If that fails, all others follow nevertheless.
fn follow_or_log(tx: &Tx<'_>, progress: &mut Progress, request: &Record) -> Result<()> {
    match tx.in_savepoint(|| follow(tx, progress, request)) {
        Err(ApiError::DiskFull) => Err(ApiError::DiskFull),
        Err(problem) => {
            error!(request = request.uuid(), container = progress.container_uuid,
                   what = progress.kind.as_str(), error = %problem,
                   "a container request cannot follow a change of its container, and stays as it is");
            Ok(())
        }
        done => done,
    }
}

fn follow(tx: &Tx<'_>, progress: &mut Progress, request: &Record) -> Result<()> {
    let container = || tx.fetch(&CONTAINERS, &progress.container_uuid);
    match progress.kind {
        FollowUp::End => {
            let Some(ended) = container()? else {
                return Ok(());
            };
            if retry::is_due(tx, &ended, request)? {
                let next = progress.retry_uuid.clone();
                let next = retry::with_new_container(tx, &ended, next, request)?;
                progress.retry_uuid = Some(next);
            } else {
                finalize::finalize_request(tx, request, Some(&ended))?;
            }
        }
        FollowUp::Log => {
            if let Some(container) = container()? {
                request_logs::give(tx, request, &container)?;
            }
        }
        FollowUp::Children => finalize::cancel_child(tx, request)?,
        FollowUp::Priority => {
            if let Some(uuid) = request.some_text("container_uuid") {
                priority::refresh(tx, uuid)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use serde_json::{Value, json};

    use super::*;
    use crate::collection::content::ManifestContent;
    use crate::collection::store;
    use crate::db::rows;
    use crate::schema::{COLLECTIONS, CONTAINER_REQUESTS, Resource};
    use crate::store::cluster_config::ClusterConfig;

    /// More than one write does.
    const REQUESTS: usize = 150;

    struct Server {
        connection: Connection,
        config: ClusterConfig,
        _directory: tempfile::TempDir,
    }

    impl Server {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            Server {
                connection: crate::db::open(&directory.path().join("state.db")).unwrap(),
                config: ClusterConfig::for_tests(),
                _directory: directory,
            }
        }

        fn write<T>(&self, work: impl FnOnce(&Tx<'_>) -> T) -> T {
            work(&Tx::new(&self.connection, &self.config))
        }

        fn create(&self, resource: &'static Resource, attributes: Value) -> Record {
            let attributes = attributes.as_object().unwrap().clone();
            self.write(|tx| {
                tx.create(resource, &tx.system, attributes.into_iter().collect())
                    .unwrap()
            })
        }

        /// Requests with this attribute.
        fn requests(&self, attribute: &str, container: &Record) {
            self.connection.execute_batch("BEGIN").unwrap();
            for _ in 0..REQUESTS {
                let request =
                    json!({"state": "Committed", "priority": 5, attribute: container.uuid()});
                self.create(&CONTAINER_REQUESTS, request);
            }
            self.connection.execute_batch("COMMIT").unwrap();
        }

        fn begin(&self, kind: FollowUp, container: &Record) {
            self.write(|tx| {
                tx.queue_follow_up(kind, container.uuid());
                run(tx).unwrap();
            });
        }

        fn has_rows(&self) -> bool {
            let mut rows = self.connection.prepare("SELECT 1 FROM follow_ups").unwrap();
            rows.exists([]).unwrap()
        }

        /// Lets all follow, and returns how many did in each write: those that `is_done` selects.
        fn follow(&self, kind: FollowUp, container: &Record, is_done: &str) -> Vec<i64> {
            let sql = format!("SELECT count(*) FROM container_requests WHERE {is_done}");
            let done = || -> i64 {
                self.connection
                    .query_row(&sql, [], |row| row.get(0))
                    .unwrap()
            };
            let mut counts = vec![0, 0];
            self.begin(kind, container);
            counts[1] = done();
            while self.has_rows() {
                self.write(|tx| run_batch(tx).unwrap());
                counts.push(done());
            }
            counts.windows(2).map(|two| two[1] - two[0]).collect()
        }
    }

    #[track_caller]
    fn assert_few_at_a_time(steps: &[i64]) {
        assert_eq!(steps.iter().sum::<i64>(), REQUESTS as i64, "{steps:?}");
        assert!(
            steps.iter().all(|step| (0..=64).contains(step)),
            "{steps:?}"
        );
        let last = steps.len() - 1;
        assert!(steps[..last].iter().all(|step| *step >= 4), "{steps:?}");
    }

    #[test]
    fn requests_get_the_results_of_their_container_a_few_at_a_time() {
        let server = Server::new();
        let container = server.create(&CONTAINERS, json!({"state": "Complete", "cost": 2.0}));
        server.requests("container_uuid", &container);
        let is_done = "state = 'Final' AND cumulative_cost = 2";
        assert_few_at_a_time(&server.follow(FollowUp::End, &container, is_done));
    }

    #[test]
    fn requests_of_a_cancelled_container_all_get_the_same_other_one() {
        let server = Server::new();
        let container = server.create(&CONTAINERS, json!({"state": "Cancelled"}));
        server.requests("container_uuid", &container);
        let is_done = "state = 'Committed' AND container_count = 1";
        assert_few_at_a_time(&server.follow(FollowUp::End, &container, is_done));
        let next = rows::find(&server.connection, &CONTAINERS, "state = 'Queued'", &[]).unwrap();
        assert_eq!(next.len(), 1);
        assert!(next[0].int("priority") > 0);
        let sql = "SELECT count(*) FROM container_requests WHERE container_uuid = ?1";
        let moved = server
            .connection
            .query_row(sql, [next[0].uuid()], |row| row.get::<_, i64>(0));
        assert_eq!(moved, Ok(REQUESTS as i64));
    }

    #[test]
    fn requests_that_come_late_do_not_wait_for_a_retry_that_has_ended() {
        let server = Server::new();
        let container = server.create(&CONTAINERS, json!({"state": "Cancelled"}));
        server.requests("container_uuid", &container);
        server.begin(FollowUp::End, &container);
        let next = rows::find(&server.connection, &CONTAINERS, "state = 'Queued'", &[]).unwrap();
        server.write(|tx| {
            let done = next[0].clone().with("state", "Complete");
            tx.update(&CONTAINERS, &tx.system, &next[0], done).unwrap();
        });
        let is_done = "state = 'Final'";
        server.follow(FollowUp::End, &next[0], is_done);
        let open = rows::find(
            &server.connection,
            &CONTAINER_REQUESTS,
            "state != 'Final'",
            &[],
        );
        assert_eq!(open.unwrap(), []);
    }

    #[test]
    fn requests_get_the_log_of_their_container_a_few_at_a_time() {
        let server = Server::new();
        let log = server.write(|tx| {
            let manifest = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:crunch-run.txt\n";
            let content = ManifestContent::parse(manifest).unwrap();
            store::create_from_content(tx, Record::new(), content).unwrap()
        });
        let running = json!({"state": "Running", "log": log.text("portable_data_hash")});
        let container = server.create(&CONTAINERS, running);
        server.requests("container_uuid", &container);
        let is_done = "log_uuid IS NOT NULL";
        assert_few_at_a_time(&server.follow(FollowUp::Log, &container, is_done));
        let logs = rows::find(
            &server.connection,
            &COLLECTIONS,
            "name LIKE 'Container log%'",
            &[],
        );
        assert_eq!(logs.unwrap().len(), REQUESTS);
    }

    #[test]
    fn requests_of_a_container_that_ended_are_cancelled_a_few_at_a_time() {
        let server = Server::new();
        let container = server.create(&CONTAINERS, json!({"state": "Complete"}));
        let child = server.create(&CONTAINERS, json!({"state": "Queued", "priority": 7}));
        server.requests("requesting_container_uuid", &container);
        let sql = "UPDATE container_requests SET container_uuid = ?1";
        server.connection.execute(sql, [child.uuid()]).unwrap();
        let is_done = "state = 'Final' AND priority = 0";
        assert_few_at_a_time(&server.follow(FollowUp::Children, &container, is_done));
        let child = rows::fetch(&server.connection, &CONTAINERS, child.uuid()).unwrap();
        assert_eq!(child.unwrap().int("priority"), 0);
    }

    #[test]
    fn what_a_container_requested_gets_its_priority_a_few_at_a_time() {
        let server = Server::new();
        let container = server.create(&CONTAINERS, json!({"state": "Running", "priority": 9}));
        server.requests("requesting_container_uuid", &container);
        let sql = "INSERT INTO containers (uuid, owner_uuid, created_at, modified_at, state) \
                   SELECT 'c' || uuid, '', '', '', 'Queued' FROM container_requests";
        server.connection.execute(sql, []).unwrap();
        let sql = "UPDATE container_requests SET container_uuid = 'c' || uuid";
        server.connection.execute(sql, []).unwrap();
        let is_done = "container_uuid IN (SELECT uuid FROM containers WHERE priority = 9)";
        assert_few_at_a_time(&server.follow(FollowUp::Priority, &container, is_done));
    }

    #[test]
    fn containers_with_many_requests_take_turns() {
        let server = Server::new();
        let containers = [(); 2].map(|()| {
            let container = server.create(&CONTAINERS, json!({"state": "Complete"}));
            server.requests("container_uuid", &container);
            server.begin(FollowUp::End, &container);
            container
        });
        let open = |container: &Record| -> i64 {
            let sql = "SELECT count(*) FROM container_requests \
                       WHERE container_uuid = ?1 AND state = 'Committed'";
            let count = server
                .connection
                .query_row(sql, [container.uuid()], |row| row.get(0));
            count.unwrap()
        };
        for _ in 0..4 {
            let before = containers.each_ref().map(open);
            for _ in 0..2 {
                server.write(|tx| run_batch(tx).unwrap());
            }
            let after = containers.each_ref().map(open);
            assert!(
                after[0] < before[0] && after[1] < before[1],
                "{before:?} {after:?}"
            );
            if after.contains(&0) {
                break;
            }
        }
    }

    #[test]
    fn a_request_that_cannot_follow_does_not_keep_the_others() {
        let server = Server::new();
        let container = server.create(&CONTAINERS, json!({"state": "Complete"}));
        server.requests("container_uuid", &container);
        server.begin(FollowUp::End, &container);
        let sql = "CREATE TABLE refused AS SELECT max(uuid) AS uuid FROM container_requests \
                   WHERE state = 'Committed'; \
                   CREATE TRIGGER refuse BEFORE UPDATE ON container_requests \
                   WHEN NEW.uuid = (SELECT uuid FROM refused) BEGIN SELECT RAISE(ABORT, 'no'); END";
        server.connection.execute_batch(sql).unwrap();
        while server.has_rows() {
            server.write(|tx| run_batch(tx).unwrap());
        }
        let open = rows::find(
            &server.connection,
            &CONTAINER_REQUESTS,
            "state != 'Final'",
            &[],
        );
        assert_eq!(open.unwrap().len(), 1);
    }
}

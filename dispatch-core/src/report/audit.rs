//! The audit file. Input: every [`Decision`]. Output: one JSON object a line, in at most two files
//! of a limited size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::json;

use crate::model::decision::Decision;
use crate::model::owner::Owner;
use crate::model::world::Job;

/// An audit file, open for appending. A full file is renamed to `FILE.1` and replaces an earlier
/// one.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    limit: u64,
    file: File,
    size: u64,
}

impl Audit {
    /// Opens the file and appends to the lines of earlier runs. Each of the two files holds at most
    /// `limit` bytes.
    pub fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let file = append_to(path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            limit,
            file,
            size,
        })
    }

    /// Writes one decision as one line. `job` is the last known job of the container.
    pub fn write(
        &mut self,
        event: &Decision,
        job: Option<&Job>,
        owner: Option<&Owner>,
    ) -> io::Result<()> {
        let mut line = json!({
            "time": Timestamp::now().to_string(),
            "event": event.name(),
            "container": event.container(),
            "text": event.text(),
        });
        if let Some(job) = job {
            line["job"] = json!(job.id.0);
            line["node"] = json!(job.node);
        }
        if let Decision::Ended { how, .. } = event {
            line["run_seconds"] = json!(how.run_seconds);
        }
        if let Decision::DecidedToRun { attempt, .. } = event {
            line["attempt"] = json!(attempt);
        }
        let own = match event {
            Decision::Dispatched { owner, .. } => owner.as_deref(),
            _ => None,
        };
        if let Some(owner) = own.or(owner) {
            line["user"] = json!(owner.user_label());
            line["project"] = json!(owner.project);
        }
        if let Decision::Evicted {
            eviction, counts, ..
        } = event
        {
            line["eviction"] = json!(eviction.word());
            line["counts"] = json!(counts);
        }
        let mut line = line.to_string();
        line.push('\n');
        if !self.is_in_place() {
            *self = Self::open(&self.path, self.limit)?;
        }
        if self.size > 0 && self.size + line.len() as u64 > self.limit {
            self.turn_over()?;
        }
        // One write call keeps the line whole if two programs append to the file.
        self.file.write_all(line.as_bytes())?;
        self.size += line.len() as u64;
        Ok(())
    }

    /// Whether the open file is still the one of this name. Others may rename it: logrotate does.
    fn is_in_place(&self) -> bool {
        let id = |file: fs::Metadata| (file.dev(), file.ino());
        let named = fs::metadata(&self.path).map(id).ok();
        named.is_some() && named == self.file.metadata().map(id).ok()
    }

    fn turn_over(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        fs::rename(&self.path, old)?;
        self.file = append_to(&self.path)?;
        self.size = 0;
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o640).open(path)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arvados_client::{ContainerUuid, TokenUuid};
    use serde_json::Value;

    use super::*;
    use crate::model::container_record::ContainerEnd;
    use crate::model::world::JobId;

    #[test]
    fn lines_are_objects_and_two_files_hold_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let container = ContainerUuid::generate("zzzzz");
        let mut audit = Audit::open(&path, 2000).unwrap();
        audit
            .write(
                &Decision::DecidedToRun {
                    container: container.clone(),
                    attempt: TokenUuid::generate("zzzzz"),
                },
                None,
                None,
            )
            .unwrap();
        drop(audit);
        let mut audit = Audit::open(&path, 2000).unwrap();
        for n in 0..100 {
            let job = Job {
                id: JobId(n.to_string()),
                container: container.clone(),
                attempt: None,
                ended: false,
                node: None,
            };
            let event = Decision::Dispatched {
                container: container.clone(),
                job: job.id.clone(),
                owner: None,
            };
            audit.write(&event, Some(&job), None).unwrap();
        }
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let (old, new) = (read("audit.log.1"), read("audit.log"));
        assert!(old.len() <= 2000 && new.len() <= 2000 && old.len() > 1500);
        let jobs: Vec<u32> = (old + &new)
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|line| line["job"].as_str().unwrap().parse().unwrap())
            .collect();
        let first = *jobs.first().unwrap();
        assert_eq!(jobs, (first..100).collect::<Vec<_>>());
    }

    /// The container may be gone from the listing when its job is confirmed.
    #[test]
    fn a_start_names_its_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let owner = Owner {
            username: Some("ada".to_owned()),
            ..Owner::default()
        };
        let event = Decision::Dispatched {
            container: ContainerUuid::generate("zzzzz"),
            job: JobId("12".to_owned()),
            owner: Some(Arc::new(owner)),
        };
        let mut audit = Audit::open(&path, 2000).unwrap();
        audit.write(&event, None, None).unwrap();
        let line: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(line["user"], "ada");
    }

    /// An admin asks who ran on a node at some time, and for how long.
    #[test]
    fn the_end_names_job_node_and_run_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let container = ContainerUuid::generate("zzzzz");
        let job = |node: Option<&str>| Job {
            id: JobId("12_3".to_owned()),
            container: container.clone(),
            attempt: None,
            ended: false,
            node: node.map(str::to_owned),
        };
        let how = ContainerEnd {
            text: "Complete".to_owned(),
            run_seconds: Some(61),
        };
        let ended = Decision::Ended {
            container: container.clone(),
            how,
        };
        let mut audit = Audit::open(&path, 2000).unwrap();
        for job in [Some(job(Some("n7"))), Some(job(None)), None] {
            audit.write(&ended, job.as_ref(), None).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        let shown: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|line| json!([line["job"], line["node"], line["run_seconds"]]))
            .collect();
        let expected = [
            json!(["12_3", "n7", 61]),
            json!(["12_3", null, 61]),
            json!([null, null, 61]),
        ];
        assert_eq!(shown, expected);
    }

    /// logrotate renames the file, or removes it.
    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut audit = Audit::open(&path, 2000).unwrap();
        let event = Decision::JobContinues {
            container: ContainerUuid::generate("zzzzz"),
        };
        let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
        let old = dir.path().join("audit.log-2026");
        audit.write(&event, None, None).unwrap();
        fs::rename(&path, &old).unwrap();
        audit.write(&event, None, None).unwrap();
        assert_eq!((lines(&old), lines(&path)), (1, 1));
        fs::remove_file(&path).unwrap();
        audit.write(&event, None, None).unwrap();
        assert_eq!(lines(&path), 1);
    }
}

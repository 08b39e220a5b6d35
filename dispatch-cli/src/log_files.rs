//! A job's log as it grows: every byte of its files once, from wherever it can be had first.
//!
//! The same files are in two places: with the container's crunch-run, which the server's log route reads, and in the
//! collection that is saved now and then and at the end. What is saved is the beginning of what is live, so one offset
//! in each file is enough for both.

use std::collections::BTreeMap;

use arvados_client::api::LogRange;
use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::Entry;
use arvados_client::{Client, ContainerUuid};

use crate::failure::Failure;
use crate::job::{Job, JobState};
use crate::log_line::{Line, Lines};
use crate::saved_log;
use crate::session::Session;

/// Reads the files of a log as they grow.
pub struct LogFiles {
    client: Client,
    keep: KeepClient,
    files: BTreeMap<String, Place>,
    attempt: Option<Attempt>,
    /// The saved log that has been read.
    seen: Option<String>,
}

/// What wrote a log: another attempt at the same container begins its files anew.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attempt {
    container: ContainerUuid,
    lock_count: u32,
}

/// How far a file has been read.
#[derive(Default)]
struct Place {
    offset: u64,
    lines: Lines,
}

impl Place {
    fn feed<E>(
        &mut self,
        bytes: &[u8],
        take: impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.offset += bytes.len() as u64;
        self.lines.feed(bytes, take)
    }
}

impl LogFiles {
    /// A reader of the named files.
    pub async fn new(session: &Session, names: &[&str]) -> Result<Self, Failure> {
        let client = session.client.clone();
        let keep = client.keep(client.keep_options().await?).await?;
        let files = names
            .iter()
            .map(|name| ((*name).to_owned(), Place::default()));
        Ok(Self {
            client,
            keep,
            files: files.collect(),
            attempt: None,
            seen: None,
        })
    }

    /// Gives every line that is new to `take`, file by file: what is saved, then what is only live yet.
    pub async fn read(
        &mut self,
        job: &Job,
        mut take: impl FnMut(&str, Line<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.turn_to(job);
        let is_saved = self.read_saved(job, &mut take).await?;
        match is_saved && job.verdict().is_some() {
            true => Ok(()),
            false => self.read_live(job, take).await.map(drop),
        }
    }

    /// Reads the saved log if it is another than the last time. False if there is none that can be read.
    async fn read_saved(
        &mut self,
        job: &Job,
        mut take: impl FnMut(&str, Line<'_>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let Some(location) = saved_log::location(job) else {
            return Ok(false);
        };
        if self.seen.as_ref() == Some(&location) {
            return Ok(true);
        }
        let Some(tree) = saved_log::open(&self.client, job, &location).await? else {
            return Ok(false);
        };
        for (name, place) in &mut self.files {
            let Some(Entry::File(extents)) = tree.lookup(name) else {
                continue;
            };
            let size = extents.iter().map(|extent| extent.len).sum();
            if size <= place.offset {
                continue;
            }
            let mut reader = FileReader::range(self.keep.clone(), extents, place.offset..size)?;
            while let Some(chunk) = reader.next_chunk().await? {
                place.feed(&chunk, |line| take(name, line))?;
            }
        }
        self.seen = Some(location);
        Ok(true)
    }

    /// Gives what was written since, as far as the server's log route has it now. Whether that was anything.
    pub async fn read_live(
        &mut self,
        job: &Job,
        mut take: impl FnMut(&str, Line<'_>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let (Some(container), true) = (&job.request.container_uuid, has_begun(job)) else {
            return Ok(false);
        };
        let mut is_new = false;
        let request = &job.request.uuid;
        for (name, place) in &mut self.files {
            let range = self
                .client
                .container_log(request, container, name, place.offset);
            // The log can be had later, or from where it is saved; who follows it sees by the job's record whether the
            // server is there at all.
            let Ok(LogRange::Data(mut stream)) = range.await else {
                continue;
            };
            while let Ok(Some(chunk)) = stream.next_chunk().await {
                place.feed(&chunk, |line| take(name, line))?;
                is_new = true;
            }
        }
        Ok(is_new)
    }

    /// Whether any of the files has anything in it.
    pub fn has_begun(&self) -> bool {
        self.files.values().any(|place| place.offset > 0)
    }

    /// When another attempt serves the job, its log begins anew.
    fn turn_to(&mut self, job: &Job) {
        let locks = job.container.as_ref().map(|c| c.lock_count);
        let attempt = job.request.container_uuid.clone().map(|container| Attempt {
            container,
            lock_count: locks.unwrap_or_default(),
        });
        if self.attempt == attempt {
            return;
        }
        let container = |attempt: &Option<Attempt>| attempt.as_ref().map(|a| a.container.clone());
        if container(&self.attempt) != container(&attempt) {
            self.seen = None;
        }
        self.attempt = attempt;
        for place in self.files.values_mut() {
            *place = Place::default();
        }
    }

    /// Gives what is left of files that do not end in a newline.
    pub fn finish(
        &mut self,
        mut take: impl FnMut(&str, Line<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for (name, place) in &mut self.files {
            place.lines.finish(|line| take(name, line))?;
        }
        Ok(())
    }
}

/// Whether there may be a log: not before a dispatcher has the container.
fn has_begun(job: &Job) -> bool {
    let before = [JobState::Draft, JobState::Held, JobState::Queued];
    !before.contains(&job.state())
}

/// The names of the files in a job's log: of one that is written now, or else of what is saved.
pub async fn names(client: &Client, job: &Job) -> Result<Vec<String>, Failure> {
    if let (Some(container), true, None) =
        (&job.request.container_uuid, has_begun(job), job.verdict())
        // What can be had of it is help; what is saved is the result.
        && let Ok(Some(files)) = client.container_log_files(&job.request.uuid, container).await
        && !files.is_empty()
    {
        return Ok(files.into_iter().map(|file| file.name).collect());
    }
    saved_log::names(client, job).await
}

//! Reads the log of a job while it grows. Out: every byte of its files once, as lines.
//!
//! The files are in two places. The log route of the server reads the live files of crunch-run. A
//! collection holds the saved files, updated periodically and at the end. The saved files are a
//! prefix of the live ones, so one offset per file is enough for both.

use std::collections::BTreeMap;

use arvados_client::api::LogRange;
use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::Entry;
use arvados_client::{Client, ContainerUuid};

use crate::error::CliError;
use crate::job::{Job, JobState};
use crate::log_line::{Line, Lines};
use crate::saved_log;
use crate::session::Session;

/// Reads the files of a log while they grow.
pub struct LogFiles {
    client: Client,
    keep: KeepClient,
    files: BTreeMap<String, ReadPosition>,
    /// The attempt that wrote the log: its container, and the number of locks. Another attempt at
    /// the same container starts new files.
    attempt: Option<(ContainerUuid, u32)>,
    /// Location of the saved log that was read last.
    last_location: Option<String>,
}

/// How far a file has been read.
#[derive(Default)]
struct ReadPosition {
    offset: u64,
    lines: Lines,
}

impl ReadPosition {
    fn feed<E>(
        &mut self,
        bytes: &[u8],
        emit: impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.offset += bytes.len() as u64;
        self.lines.feed(bytes, emit)
    }
}

impl LogFiles {
    /// A reader of the named files.
    pub async fn new(session: &Session, names: &[&str]) -> Result<Self, CliError> {
        let client = session.client.clone();
        let keep = client.keep(client.keep_options().await?).await?;
        let files = names
            .iter()
            .map(|name| ((*name).to_owned(), ReadPosition::default()));
        Ok(Self {
            client,
            keep,
            files: files.collect(),
            attempt: None,
            last_location: None,
        })
    }

    /// Passes every new line to `emit`, file by file: first the saved part, then the live part.
    pub async fn read(
        &mut self,
        job: &Job,
        mut emit: impl FnMut(&str, Line<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        self.switch_attempt(job);
        let is_saved = self.read_saved(job, &mut emit).await?;
        match is_saved && job.verdict().is_some() {
            true => Ok(()),
            false => self.read_live(job, emit).await.map(drop),
        }
    }

    /// Reads the saved log if it has changed since the last call. False if there is none that can
    /// be read.
    async fn read_saved(
        &mut self,
        job: &Job,
        mut emit: impl FnMut(&str, Line<'_>) -> Result<(), CliError>,
    ) -> Result<bool, CliError> {
        let Some(location) = saved_log::location(job) else {
            return Ok(false);
        };
        if self.last_location.as_ref() == Some(&location) {
            return Ok(true);
        }
        let Some(tree) = saved_log::open(&self.client, job, &location).await? else {
            return Ok(false);
        };
        for (name, position) in &mut self.files {
            let Some(Entry::File(extents)) = tree.lookup(name) else {
                continue;
            };
            let size = extents.iter().map(|extent| extent.len).sum();
            if size <= position.offset {
                continue;
            }
            let mut reader = FileReader::range(self.keep.clone(), extents, position.offset..size)?;
            while let Some(chunk) = reader.next_chunk().await? {
                position.feed(&chunk, |line| emit(name, line))?;
            }
        }
        self.last_location = Some(location);
        Ok(true)
    }

    /// Passes new lines from the log route of the server to `emit`. Returns whether there were any.
    pub async fn read_live(
        &mut self,
        job: &Job,
        mut emit: impl FnMut(&str, Line<'_>) -> Result<(), CliError>,
    ) -> Result<bool, CliError> {
        let (Some(container), true) = (&job.request.container_uuid, has_begun(job)) else {
            return Ok(false);
        };
        let mut is_new = false;
        let request = &job.request.uuid;
        for (name, position) in &mut self.files {
            let range = self
                .client
                .container_log(request, container, name, position.offset);
            // Errors are ignored: a later call or the saved log has these lines, and `dispatch logs
            // -f` reads the record of the job, which shows an outage.
            let Ok(LogRange::Data(mut stream)) = range.await else {
                continue;
            };
            while let Ok(Some(chunk)) = stream.next_chunk().await {
                position.feed(&chunk, |line| emit(name, line))?;
                is_new = true;
            }
        }
        Ok(is_new)
    }

    /// Whether any line was read.
    pub fn has_begun(&self) -> bool {
        self.files.values().any(|position| position.offset > 0)
    }

    /// Restarts at the beginning of the files if another attempt serves the job now.
    fn switch_attempt(&mut self, job: &Job) {
        let locks = job.container.as_ref().map_or(0, |c| c.lock_count);
        let attempt = job.request.container_uuid.clone().map(|uuid| (uuid, locks));
        if self.attempt == attempt {
            return;
        }
        let before = std::mem::replace(&mut self.attempt, attempt);
        if before.map(|(uuid, _)| uuid) != job.request.container_uuid {
            self.last_location = None;
        }
        for position in self.files.values_mut() {
            *position = ReadPosition::default();
        }
    }

    /// Passes the last lines of files that do not end in a newline.
    pub fn finish(
        &mut self,
        mut emit: impl FnMut(&str, Line<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        for (name, position) in &mut self.files {
            position.lines.finish(|line| emit(name, line))?;
        }
        Ok(())
    }
}

/// Whether there can be a log: not before a dispatcher locks the container.
fn has_begun(job: &Job) -> bool {
    let before = [JobState::Draft, JobState::Held, JobState::Queued];
    !before.contains(&job.state())
}

/// Names of the files in the live log, or else in the saved log.
pub async fn names(client: &Client, job: &Job) -> Result<Vec<String>, CliError> {
    if let (Some(container), true, None) =
        (&job.request.container_uuid, has_begun(job), job.verdict())
        // Errors of the live log are ignored; the saved log is authoritative.
        && let Ok(Some(files)) = client.container_log_files(&job.request.uuid, container).await
        && !files.is_empty()
    {
        return Ok(files);
    }
    saved_log::names(client, job).await
}

//! A job's log: the files of its log collection, read from where the last reading ended.

use std::collections::BTreeMap;

use arvados_client::Client;
use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::{Entry, EntryKind};

use crate::collection::{self, Stored};
use crate::failure::Failure;
use crate::job::Job;
use crate::log_line::{Line, Lines};

/// Reads the files of a log as they grow.
pub struct LogFiles {
    client: Client,
    keep: KeepClient,
    files: BTreeMap<String, Place>,
    seen: Option<String>,
}

struct Place {
    offset: u64,
    lines: Lines,
}

/// Where the log of a job is now: the request's own collection once it has one, else what its container saved last.
pub fn location(job: &Job) -> Option<String> {
    let saved = job.container.as_ref().and_then(|c| c.log.as_ref());
    let own = job.request.log_uuid.as_ref().map(ToString::to_string);
    // While it runs, the content changes: its hash tells when.
    saved.map(ToString::to_string).or(own)
}

impl LogFiles {
    /// A reader of the named files.
    pub async fn new(client: &Client, names: &[&str]) -> Result<Self, Failure> {
        let keep = client.keep(client.keep_options().await?).await?;
        let place = |name: &&str| {
            let lines = Lines::default();
            ((*name).to_owned(), Place { offset: 0, lines })
        };
        Ok(Self {
            client: client.clone(),
            keep,
            files: names.iter().map(place).collect(),
            seen: None,
        })
    }

    /// Gives every line that is new in the collection at `location` to `take`, file by file.
    pub async fn read(
        &mut self,
        job: &Job,
        mut take: impl FnMut(&str, Line<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(location) = location(job) else {
            return Ok(());
        };
        if self.seen.as_ref() == Some(&location) {
            return Ok(());
        }
        let stored = open(&self.client, job, &location).await?;
        for (name, place) in &mut self.files {
            let Some(Entry::File(extents)) = stored.tree.lookup(name) else {
                continue;
            };
            let size = extents.iter().map(|extent| extent.len).sum();
            if size < place.offset {
                // Another container serves the job now, and its log begins anew.
                place.offset = 0;
            }
            let mut reader = FileReader::range(self.keep.clone(), extents, place.offset..size)?;
            while let Some(chunk) = reader.next_chunk().await? {
                place.lines.feed(&chunk, |line| take(name, line))?;
            }
            place.offset = size;
        }
        self.seen = Some(location);
        Ok(())
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

/// By its hash, or, where that may not be read, as the request's collection.
async fn open(client: &Client, job: &Job, location: &str) -> Result<Stored, Failure> {
    match (
        collection::open(client, location).await,
        &job.request.log_uuid,
    ) {
        (Err(Failure::NoCollection(_)), Some(own)) if own.as_str() != location => {
            collection::open(client, own.as_str()).await
        }
        (opened, _) => opened,
    }
}

/// The names of the files in a job's log.
pub async fn names(client: &Client, job: &Job) -> Result<Vec<String>, Failure> {
    let Some(location) = location(job) else {
        return Ok(Vec::new());
    };
    let stored = open(client, job, &location).await?;
    let entries = stored.tree.list("").unwrap_or_default();
    Ok(entries
        .iter()
        .filter(|entry| matches!(entry.kind, EntryKind::File { .. }))
        .map(|entry| entry.name.to_owned())
        .collect())
}

/// A small file of a job's log, whole; none if it is not there (any more) or too large.
pub async fn small(client: &Client, keep: &KeepClient, job: &Job, name: &str) -> Option<Vec<u8>> {
    const MOST: usize = 1 << 20;
    let stored = open(client, job, &location(job)?).await.ok()?;
    let Some(Entry::File(extents)) = stored.tree.lookup(name) else {
        return None;
    };
    FileReader::new(keep.clone(), extents)
        .read_all(MOST)
        .await
        .ok()
}

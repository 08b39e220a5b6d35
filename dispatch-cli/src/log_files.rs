//! A job's log: the files of its log collection, read from where the last reading ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::{Entry, EntryKind};
use arvados_client::{Client, ContainerUuid};

use crate::collection::{self, Stored};
use crate::failure::Failure;
use crate::job::Job;
use crate::log_line::{Line, Lines};
use crate::session::Session;
use crate::state_dir::RUN_DIR;

/// Reads the files of a log as they grow.
pub struct LogFiles {
    client: Client,
    keep: KeepClient,
    /// Where the executors of this machine write, if the job may run here.
    run_dir: Option<PathBuf>,
    files: BTreeMap<String, Place>,
    container: Option<ContainerUuid>,
    seen: Option<String>,
}

#[derive(Default)]
struct Place {
    offset: u64,
    lines: Lines,
}

/// Where the log of a job is now: what its container saved last, else the request's own collection.
pub fn location(job: &Job) -> Option<String> {
    let saved = job.container.as_ref().and_then(|c| c.log.as_ref());
    let own = job.request.log_uuid.as_ref().map(ToString::to_string);
    // While it runs, the content changes: its hash tells when.
    saved.map(ToString::to_string).or(own)
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
            run_dir: session.local.as_ref().map(|state| state.join(RUN_DIR)),
            files: files.collect(),
            container: None,
            seen: None,
        })
    }

    /// Gives every line that is new to `take`, file by file: what is saved on the server, then what is only on this
    /// machine yet.
    pub async fn read(
        &mut self,
        job: &Job,
        mut take: impl FnMut(&str, Line<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.turn_to(job);
        if let Some(location) = location(job)
            && self.seen.as_ref() != Some(&location)
        {
            let stored = open(&self.client, job, &location).await?;
            for (name, place) in &mut self.files {
                let Some(Entry::File(extents)) = stored.tree.lookup(name) else {
                    continue;
                };
                let size = extents.iter().map(|extent| extent.len).sum();
                if size <= place.offset {
                    continue;
                }
                let mut reader = FileReader::range(self.keep.clone(), extents, place.offset..size)?;
                while let Some(chunk) = reader.next_chunk().await? {
                    place.lines.feed(&chunk, |line| take(name, line))?;
                }
                place.offset = size;
            }
            self.seen = Some(location);
        }
        self.read_here(take)
    }

    /// Gives what the executor has written on this machine since. What is saved later is the same bytes.
    pub fn read_here(
        &mut self,
        mut take: impl FnMut(&str, Line<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (Some(run_dir), Some(container)) = (&self.run_dir, &self.container) else {
            return Ok(());
        };
        let dir = run_dir.join(container.as_str()).join("log");
        for (name, place) in &mut self.files {
            // It runs elsewhere, is over, or is somebody else's: then only what is saved can be read.
            let Ok(mut file) = File::open(dir.join(name)) else {
                continue;
            };
            if file.seek(SeekFrom::Start(place.offset)).is_err() {
                continue;
            }
            let mut chunk = vec![0; 64 << 10];
            while let Ok(got @ 1..) = file.read(&mut chunk) {
                place.offset += got as u64;
                place.lines.feed(&chunk[..got], |line| take(name, line))?;
            }
        }
        Ok(())
    }

    /// Whether there is anything on this machine to read.
    pub fn is_here(&self) -> bool {
        match (&self.run_dir, &self.container) {
            (Some(run_dir), Some(container)) => {
                run_dir.join(container.as_str()).join("log").is_dir()
            }
            _ => false,
        }
    }

    /// When another container serves the job, its log begins anew.
    fn turn_to(&mut self, job: &Job) {
        let container = &job.request.container_uuid;
        if self.container != *container {
            self.container.clone_from(container);
            self.seen = None;
            for place in self.files.values_mut() {
                *place = Place::default();
            }
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

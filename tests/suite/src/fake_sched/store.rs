//! Reads and writes the fake scheduler's state directory under a lock. `jobs.jsonl` is only
//! appended to, and the last line about a job counts. So a new job costs the same however many
//! there are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::state::{Job, State};

const STATE: &str = "state.json";
const JOBS: &str = "jobs.jsonl";
const CALLS: &str = "calls.jsonl";
const LOCK: &str = "lock";

/// What changes with the state: of its files the inode, the size and the time of the last change.
pub type Version = [(u64, u64, i64); 2];

/// The directory with the whole state.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Files that are appended to or locked. The state itself is renamed into place.
    pub const FILES: [&str; 3] = [JOBS, CALLS, LOCK];

    /// The store in this directory.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The current state.
    pub fn read(&self) -> io::Result<State> {
        let _lock = self.lock(File::lock_shared)?;
        self.load()
    }

    /// A value that differs after each change of the state. It costs much less than the state.
    pub fn version(&self) -> io::Result<Version> {
        let _lock = self.lock(File::lock_shared)?;
        let size = |name| match fs::metadata(self.dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((0, 0, 0)),
            found => found.map(|file| (file.ino(), file.len(), file.mtime_nsec())),
        };
        Ok([size(STATE)?, size(JOBS)?])
    }

    /// The current state without the jobs.
    pub fn read_rest(&self) -> io::Result<State> {
        let _lock = self.lock(File::lock_shared)?;
        self.load_rest()
    }

    /// Changes the state under the lock.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        let _lock = self.lock(File::lock)?;
        let mut state = self.load()?;
        let before = state.jobs.clone();
        let answer = change(&mut state);
        let changed = (0..).zip(&state.jobs);
        let changed = changed.filter(|(index, job)| before.get(*index) != Some(job));
        self.write_jobs(changed)?;
        state.count = state.jobs.len();
        self.write_rest(&state)?;
        Ok(answer)
    }

    /// Changes the state under the lock; `change` does not see the jobs.
    pub fn change_rest<T>(&self, change: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        let _lock = self.lock(File::lock)?;
        let mut state = self.load_rest()?;
        let answer = change(&mut state);
        self.write_rest(&state)?;
        Ok(answer)
    }

    /// Adds jobs that `make` creates from a new number. Returns the number, and whether jobs are
    /// run.
    pub fn add(&self, make: impl FnOnce(u64) -> Vec<Job>) -> io::Result<(u64, bool)> {
        let _lock = self.lock(File::lock)?;
        let mut state = self.load_rest()?;
        state.last_id += 1;
        let jobs = make(state.last_id);
        self.write_jobs((state.count..).zip(&jobs))?;
        state.count += jobs.len();
        self.write_rest(&state)?;
        Ok((state.last_id, state.settings.run_jobs))
    }

    fn load(&self) -> io::Result<State> {
        let mut state = self.load_rest()?;
        state.jobs = vec![Job::default(); state.count];
        for line in self.lines(JOBS)?.lines() {
            let (index, job) = serde_json::from_str(line)?;
            // A job beyond the count was being added when its writer was killed.
            if let Some(known) = state.jobs.get_mut::<usize>(index) {
                *known = job;
            }
        }
        Ok(state)
    }

    fn load_rest(&self) -> io::Result<State> {
        match self.lines(STATE)?.as_str() {
            "" => Ok(State::default()),
            text => Ok(serde_json::from_str(text)?),
        }
    }

    fn write_rest(&self, state: &State) -> io::Result<()> {
        let text = serde_json::to_vec(state)?;
        if self.lines(STATE)?.as_bytes() == text {
            return Ok(());
        }
        let fresh = self.dir.join("state.new");
        fs::write(&fresh, text)?;
        fs::rename(fresh, self.dir.join(STATE))
    }

    fn write_jobs<'a>(&self, jobs: impl Iterator<Item = (usize, &'a Job)>) -> io::Result<()> {
        let mut text = Vec::new();
        for line in jobs {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        self.append(JOBS, &text)
    }

    /// Writes one line of the call log.
    pub fn log(&self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.append(CALLS, &text)
    }

    /// The call log, without a last line that is still being written.
    pub fn calls(&self) -> io::Result<Vec<super::Call>> {
        let text = self.lines(CALLS)?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let calls = whole.lines().map(|line| Ok(serde_json::from_str(line)?));
        calls.collect()
    }

    /// Appends with a single write, which other processes see as a whole.
    fn append(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let path = self.dir.join(name);
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(text)
    }

    /// A file's text; empty if the file does not exist.
    fn lines(&self, name: &str) -> io::Result<String> {
        match fs::read_to_string(self.dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.dir.is_dir() => {
                Ok(String::new())
            }
            text => text,
        }
    }

    fn lock(&self, lock: fn(&File) -> io::Result<()>) -> io::Result<File> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join(LOCK))?;
        lock(&file)?;
        Ok(file)
    }
}

//! The file that says which scheduler arguments the jobs of a user or project get, such as an
//! account.
//!
//! Input: a file with lines `WHO [weight=N] ARGUMENT…`. Output: the templates of arguments for an
//! [`Owner`], and its [`Weight`]. WHO is a user name, the uuid of a user, the uuid of a project, or
//! `*` for everybody. The first line that matches counts. Arguments are quoted as in a shell; `#`
//! begins a comment line.
//!
//! Names of projects and e-mail addresses are not accepted: people can change their own.

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arvados_client::{GroupUuid, UserUuid};
use parking_lot::Mutex;

use crate::model::owner::{Charge, KnownOwner, Owner, Weight};
use crate::scheduler::template::account_of;

/// Maximum size of the file in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Time for which [`OwnerMap::refresh`] waits for the file system.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// WHO of a line for everybody.
const ANYONE: &str = "*";
/// Begin of the word that sets the weight of a line.
const WEIGHT: &str = "weight=";
/// Maximum weight of a line.
const MAX_WEIGHT: u16 = 1000;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnerMapError {
    /// The file cannot be read.
    #[error("cannot read the owner map {}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The last line has no line break, so that the file may be cut.
    #[error("the last line of the owner map {} has no line break: is the file complete?", .0.display())]
    Cut(PathBuf),
    /// The file has no line.
    #[error("the owner map {} has no line", .0.display())]
    Empty(PathBuf),
    /// A line is wrong.
    #[error("{}, line {line}: {why}", path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with the line.
        why: String,
    },
}

/// Checks one template of an argument; the error is for the admin.
pub type ArgumentCheck = fn(&str) -> Result<(), String>;

/// The file, as it was last read.
#[derive(Debug)]
pub struct OwnerMap {
    path: PathBuf,
    check: ArgumentCheck,
    state: Mutex<(Version, Arc<[Line]>)>,
    /// Whether a read is under way. One that hangs must not be followed by others.
    reading: AtomicBool,
}

/// Device, inode, size and time of the last change (ctime), in seconds and nanoseconds. A program
/// that keeps the time of its source sets mtime only.
type Version = (u64, u64, u64, i64, i64);

#[derive(Debug)]
struct Line {
    who: Who,
    weight: Weight,
    arguments: Arc<[String]>,
}

#[derive(Debug, PartialEq, Eq)]
enum Who {
    Anyone,
    User(UserUuid),
    Project(GroupUuid),
    Username(String),
}

impl Who {
    fn parse(text: &str) -> Result<Self, String> {
        if text == ANYONE {
            return Ok(Self::Anyone);
        }
        if let Ok(user) = UserUuid::parse(text) {
            return Ok(Self::User(user));
        }
        if let Ok(project) = GroupUuid::parse(text) {
            return Ok(Self::Project(project));
        }
        let owner = Owner {
            username: Some(text.to_owned()),
            ..Owner::default()
        };
        match owner.plain_username() {
            Some(name) => Ok(Self::Username(name.to_owned())),
            None => Err(format!(
                "{text:?} is neither a user name, nor the uuid of a user or project, nor {ANYONE}"
            )),
        }
    }

    fn is(&self, owner: Option<&Owner>) -> bool {
        let owner = match (self, owner) {
            (Self::Anyone, _) => return true,
            (_, None) => return false,
            (_, Some(owner)) => owner,
        };
        match self {
            Self::Anyone => true,
            Self::User(user) => owner.user.as_ref() == Some(user),
            Self::Project(project) => owner.project.as_ref() == Some(project),
            Self::Username(name) => owner.username.as_ref() == Some(name),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.write_str(ANYONE),
            Self::User(user) => user.fmt(f),
            Self::Project(project) => project.fmt(f),
            Self::Username(name) => f.write_str(name),
        }
    }
}

impl OwnerMap {
    /// Reads the file. `check` is applied to every argument.
    pub fn open(path: &Path, check: ArgumentCheck) -> Result<Self, OwnerMapError> {
        let state = read(path, check)?;
        Ok(Self {
            path: path.to_owned(),
            check,
            state: Mutex::new(state),
            reading: AtomicBool::new(false),
        })
    }

    /// Reads the file for one command. With `is_optional`, a file that is wrong is no error but a
    /// warning on standard error: the command works without it.
    pub fn for_command(
        path: Option<&Path>,
        check: ArgumentCheck,
        is_optional: bool,
    ) -> Result<Option<Arc<Self>>, OwnerMapError> {
        let opened = path.map(|path| Self::open(path, check).map(Arc::new));
        match opened.transpose() {
            Err(error) if is_optional => {
                eprintln!("warning: {error}");
                Ok(None)
            }
            opened => opened,
        }
    }

    /// The templates of arguments for the jobs of `owner`.
    pub fn arguments(&self, owner: Option<&Owner>) -> Arc<[String]> {
        self.line(owner).0
    }

    /// The templates of arguments of the line of `owner`, and its weight.
    fn line(&self, owner: Option<&Owner>) -> (Arc<[String]>, Weight) {
        let lines = self.state.lock().1.clone();
        let line = lines.iter().find(|line| line.who.is(owner));
        line.map(|line| (line.arguments.clone(), line.weight))
            .unwrap_or((Arc::default(), Weight::MIN))
    }

    /// For whom each line is, and its templates of arguments.
    pub fn lines(&self) -> Vec<(String, Arc<[String]>)> {
        let lines = self.state.lock().1.clone();
        let line = |line: &Line| (line.who.to_string(), line.arguments.clone());
        lines.iter().map(line).collect()
    }

    /// Reads the file again if it was changed. A file that is wrong now is logged, and what was
    /// read before counts.
    pub async fn refresh(self: &Arc<Self>) {
        if self.reading.swap(true, Ordering::AcqRel) {
            return;
        }
        let map = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            map.refresh_now();
            map.reading.store(false, Ordering::Release);
        });
        let _ = tokio::time::timeout(READ_TIMEOUT, read).await;
    }

    fn refresh_now(&self) {
        // A file that is missing has the version 0.
        let found = fs::metadata(&self.path).map(|found| version(&found));
        let found = found.unwrap_or_default();
        if found == self.state.lock().0 {
            return;
        }
        match read(&self.path, self.check) {
            Ok(changed) => {
                let lines = changed.1.len();
                *self.state.lock() = changed;
                tracing::info!(
                    event = "owner_map_read",
                    lines,
                    "read the changed owner map"
                );
            }
            Err(error) => {
                let log = "the changed owner map cannot be used; the earlier one still counts";
                tracing::warn!(event = "owner_map_failed", %error, "{log}");
                // Logged once for each change.
                self.state.lock().0 = found;
            }
        }
    }
}

/// How the jobs of `owner` are charged: by its line of the owner map, and by the `templates` of the
/// other settings that depend on owners.
pub fn charge<'a>(
    map: Option<&OwnerMap>,
    templates: impl Iterator<Item = &'a String>,
    owner: KnownOwner,
) -> Charge {
    let (of_line, weight) = match map {
        Some(map) => map.line(owner.as_deref()),
        None => (Arc::default(), Weight::MIN),
    };
    let mut all: Vec<&str> = of_line.iter().map(String::as_str).collect();
    for template in templates {
        all.push(template);
    }
    let account = account_of(&all, owner.as_deref());
    Charge {
        weight,
        ..Charge::new(owner, account)
    }
}

/// The weight that a word of a line sets; none if it sets another thing.
fn parse_weight(word: &str) -> Option<Result<Weight, String>> {
    let number = word.strip_prefix(WEIGHT)?;
    let weight = number
        .parse()
        .ok()
        .filter(|weight: &Weight| weight.get() <= MAX_WEIGHT);
    Some(weight.ok_or_else(|| format!("{word:?} is no weight from 1 to {MAX_WEIGHT}")))
}

fn version(found: &Metadata) -> Version {
    (
        found.dev(),
        found.ino(),
        found.len(),
        found.ctime(),
        found.ctime_nsec(),
    )
}

fn read(path: &Path, check: ArgumentCheck) -> Result<(Version, Arc<[Line]>), OwnerMapError> {
    let unreadable = |source| OwnerMapError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let found = fs::metadata(path).map_err(unreadable)?;
    if !found.is_file() || found.len() > MAX_FILE_BYTES {
        let why = format!("it is no file of at most {} MiB", MAX_FILE_BYTES >> 20);
        return Err(unreadable(io::Error::other(why)));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(OwnerMapError::Cut(path.to_owned()));
    }
    let lines = parse(&text, check).map_err(|(line, why)| OwnerMapError::Wrong {
        path: path.to_owned(),
        line,
        why,
    })?;
    // A file that was truncated must not charge everybody to the account of the service.
    if lines.is_empty() {
        return Err(OwnerMapError::Empty(path.to_owned()));
    }
    Ok((version(&found), lines.into()))
}

/// The lines, or the number of the first wrong one and what is wrong.
fn parse(text: &str, check: ArgumentCheck) -> Result<Vec<Line>, (usize, String)> {
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |why: String| (number + 1, why);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words = shlex::split(line).ok_or_else(|| wrong("a quote is not closed".into()))?;
        let mut words = words.into_iter();
        let who = Who::parse(&words.next().unwrap_or_default()).map_err(wrong)?;
        if lines.iter().any(|line: &Line| line.who == Who::Anyone) {
            return Err(wrong(format!(
                "a line after that of {ANYONE} is never used"
            )));
        }
        let mut arguments: Vec<String> = words.collect();
        let weight = match arguments.first().and_then(|word| parse_weight(word)) {
            Some(weight) => {
                arguments.remove(0);
                weight.map_err(wrong)?
            }
            None => Weight::MIN,
        };
        for argument in &arguments {
            check(argument).map_err(wrong)?;
        }
        lines.push(Line {
            who,
            weight,
            arguments: arguments.into(),
        });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests;

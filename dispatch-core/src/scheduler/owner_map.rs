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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arvados_client::{GroupUuid, UserUuid};

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
        let lines = self.state().1.clone();
        let line = lines.iter().find(|line| line.who.is(owner));
        line.map(|line| (line.arguments.clone(), line.weight))
            .unwrap_or((Arc::default(), Weight::MIN))
    }

    /// For whom each line is, and its templates of arguments.
    pub fn lines(&self) -> Vec<(String, Arc<[String]>)> {
        let lines = self.state().1.clone();
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
        if found == self.state().0 {
            return;
        }
        match read(&self.path, self.check) {
            Ok(changed) => {
                let lines = changed.1.len();
                *self.state() = changed;
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
                self.state().0 = found;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, (Version, Arc<[Line]>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
mod tests {
    use super::*;

    const USER: &str = "zzzzz-tpzed-000000000000001";
    const PROJECT: &str = "zzzzz-j7d0g-000000000000001";

    fn any(argument: &str) -> Result<(), String> {
        match argument.starts_with("--") {
            true => Ok(()),
            false => Err(format!("{argument:?} is no option")),
        }
    }

    fn owner(username: &str, user: &str, project: Option<&str>) -> Owner {
        Owner {
            user: UserUuid::parse(user).ok(),
            username: Some(username.to_owned()),
            project: project.map(|project| GroupUuid::parse(project).unwrap()),
            project_name: Some("ada".to_owned()),
        }
    }

    fn map(text: &str) -> (tempfile::TempDir, Result<OwnerMap, String>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        fs::write(&path, text).unwrap();
        let map = OwnerMap::open(&path, any).map_err(|error| error.to_string());
        (dir, map)
    }

    #[test]
    fn the_first_line_that_matches_counts() {
        let text = format!(
            "# who  arguments\n\n{PROJECT}  --account=proteomics\nada  --account=genomics '--qos=a b'\n\
             {USER} --account=by-uuid\nbob\n*  --account=guests\n"
        );
        let (_dir, map) = map(&text);
        let map = map.unwrap();
        let other = "zzzzz-tpzed-000000000000002";
        #[rustfmt::skip]
        let rows = [
            (Some(owner("ada", other, Some(PROJECT))), vec!["--account=proteomics"]),
            (Some(owner("ada", USER, None)), vec!["--account=genomics", "--qos=a b"]),
            (Some(owner("eve", USER, None)), vec!["--account=by-uuid"]),
            // A line without arguments keeps the later ones away.
            (Some(owner("bob", other, None)), vec![]),
            (Some(owner("eve", other, None)), vec!["--account=guests"]),
            (None, vec!["--account=guests"]),
        ];
        for (owner, expected) in rows {
            assert_eq!(*map.arguments(owner.as_ref()), *expected, "{owner:?}");
        }
    }

    #[test]
    fn owners_with_the_same_arguments_are_charged_alike() {
        let text =
            "ada weight=3 --account=bio\nbob --account=bio\neve --account=%u\n* --qos=%g%P\n";
        let (_dir, map) = map(text);
        let map = map.unwrap();
        let more = ["--wckey=%u %C".to_owned()];
        let charged = |name: &str, templates: &[String]| {
            let owner = Arc::new(owner(name, USER, Some(PROJECT)));
            charge(Some(&map), templates.iter(), Some(owner))
        };
        let [ada, bob, eve, dan] = ["ada", "bob", "eve", "dan"].map(|name| charged(name, &[]));
        assert_eq!(
            (ada.account.as_str(), ada.weight.get()),
            ("--account=bio", 3)
        );
        assert!(ada == bob && bob.weight == Weight::MIN && ada != eve);
        assert_eq!(eve.account, "--account=eve");
        assert_eq!(dan.account, format!("--qos={PROJECT}%P"));
        assert_ne!(charged("ada", &more), charged("bob", &more));
        assert_eq!(
            charged("bob", &more).account,
            "--account=bio --wckey=bob %C"
        );
        // What is not known of an owner is no part of an argument.
        assert_eq!(charge(Some(&map), more.iter(), None).account, "");
    }

    #[test]
    fn a_wrong_line_is_named() {
        #[rustfmt::skip]
        let rows = [
            ("ada --account=a\nbob -x\n", "line 2: \"-x\" is no option"),
            ("ada '--account=a\n", "line 1: a quote is not closed"),
            ("'ada lovelace' --account=a\n", "line 1: \"ada lovelace\" is neither a user name"),
            ("'' --account=a\n", "line 1: \"\" is neither"),
            ("ada weight=0 --account=a\n", "line 1: \"weight=0\" is no weight from 1 to 1000"),
            ("ada weight=1001\n", "no weight from 1 to 1000"),
            ("ada weight=-1\n", "no weight"),
            ("ada weight=1.5\n", "no weight"),
            ("ada --account=a weight=2\n", "\"weight=2\" is no option"),
            ("* --account=a\nada --account=b\n", "line 2: a line after that of * is never used"),
        ];
        for (text, words) in rows {
            let (_dir, map) = map(text);
            let error = map.unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let (_dir, empty) = map("# nobody\n");
        assert!(empty.unwrap_err().contains("has no line"));
        // A full disk, or an editor at work: the account would be another one.
        let (_dir, cut) = map("* --account=genom");
        assert!(cut.unwrap_err().contains("is the file complete"));
        let (_dir, mail) = map("ada@example.org --account=a\n");
        assert!(mail.unwrap_err().contains("neither a user name"));
        let missing = OwnerMap::open(Path::new("/nowhere/map"), any).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/map"), "{missing}");
        let folder = OwnerMap::open(Path::new("/"), any).unwrap_err();
        assert!(folder.to_string().contains("no file"), "{folder}");
    }

    #[tokio::test]
    async fn a_changed_file_is_read_and_a_wrong_one_changes_nothing() {
        let (dir, map) = map("* --account=a\n");
        let map = Arc::new(map.unwrap());
        let path = dir.path().join("map");
        let account = || map.arguments(None).first().cloned();
        let write = |text: &str| {
            // As admins do: a new file under the same name.
            let new = dir.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(new, &path).unwrap();
        };
        map.refresh().await;
        assert_eq!(account().as_deref(), Some("--account=a"));
        write("* --account=b\n");
        map.refresh().await;
        assert_eq!(account().as_deref(), Some("--account=b"));
        // In place, and with the time of another file.
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "* --account=d\n").unwrap();
        fs::File::open(&path).unwrap().set_modified(time).unwrap();
        map.refresh().await;
        assert_eq!(account().as_deref(), Some("--account=d"));
        write("* --account=b\n");
        map.refresh().await;
        write("");
        map.refresh().await;
        assert_eq!(account().as_deref(), Some("--account=b"));
        write("* wrong\n");
        map.refresh().await;
        assert_eq!(account().as_deref(), Some("--account=b"));
        fs::remove_file(&path).unwrap();
        map.refresh().await;
        assert_eq!(account().as_deref(), Some("--account=b"));
        write("* --account=c\n");
        map.refresh().await;
        assert_eq!(account().as_deref(), Some("--account=c"));
    }
}

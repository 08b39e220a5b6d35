//! Checks the values of a demand file, for both forms.

use serde::{Deserialize, Serialize};

use crate::demand::{Demand, Status, UNIVERSAL_EPOCH, Worker};

/// Maximum update interval, in seconds: one week.
const MAX_UPDATE_INTERVAL: u64 = 7 * 86_400;
/// Maximum length of a text.
const MAX_TEXT_CHARACTERS: usize = 4096;
/// Maximum length of a list.
const MAX_LIST_ITEMS: usize = 1000;

/// Why a value is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A timestamp before 1970, probably in Unix time.
    #[error(
        "{0} is before 1970: it is Lisp's universal time, seconds since 1900, so Unix time and {UNIVERSAL_EPOCH}"
    )]
    Timestamp(u64),
    /// A timestamp in the far future.
    #[error("{0} is thousands of years from now")]
    FarFuture(u64),
    /// An unknown status.
    #[error("{0:?} is neither in-progress nor finished")]
    Status(String),
    /// An update interval out of range.
    #[error("{0} s is not between a second and a week")]
    Interval(u64),
    /// A number of workers out of range.
    #[error("{0} is more workers than there are")]
    Needed(u64),
    /// A relative path, whose meaning depends on the directory.
    #[error("{0:?} is not an absolute path")]
    NotAbsolute(String),
    /// An empty text.
    #[error("it is empty")]
    Empty,
    /// A text with a control character, which could end a word or line elsewhere.
    #[error("{0:?} holds a control character")]
    Control(String),
    #[error("a text is longer than {MAX_TEXT_CHARACTERS} characters")]
    LongText,
    #[error("a list has more than {MAX_LIST_ITEMS} texts")]
    LongList,
}

/// The values of a file before they are checked, with the names of the JSON form.
#[derive(Serialize, Deserialize)]
pub struct UncheckedDemand {
    pub computation_status: String,
    pub timestamp: u64,
    pub member_id: String,
    pub update_interval: u64,
    pub slaves_needed: u64,
    pub slave_executable: String,
    #[serde(default)]
    pub slave_libraries: Vec<String>,
    pub slave_arguments: Vec<String>,
}

/// Keys of the format, in the order in which they are written.
pub const STATUS: &str = "computation-status";
pub const TIMESTAMP: &str = "timestamp";
pub const MEMBER: &str = "member-id";
pub const INTERVAL: &str = "update-interval";
pub const NEEDED: &str = "slaves-needed";
pub const EXECUTABLE: &str = "slave-executable";
pub const ARGUMENTS: &str = "slave-arguments";

impl UncheckedDemand {
    /// Checks all values. The error names the key.
    pub fn validate(self) -> Result<Demand, (&'static str, ValueError)> {
        let Some(status) = Status::parse(&self.computation_status) else {
            return Err((STATUS, ValueError::Status(self.computation_status)));
        };
        if self.timestamp >= 1 << 40 {
            return Err((TIMESTAMP, ValueError::FarFuture(self.timestamp)));
        }
        let Some(written_at) = self.timestamp.checked_sub(UNIVERSAL_EPOCH) else {
            return Err((TIMESTAMP, ValueError::Timestamp(self.timestamp)));
        };
        if self.member_id.is_empty() {
            return Err((MEMBER, ValueError::Empty));
        }
        text(&self.member_id).map_err(|problem| (MEMBER, problem))?;
        if !(1..=MAX_UPDATE_INTERVAL).contains(&self.update_interval) {
            return Err((INTERVAL, ValueError::Interval(self.update_interval)));
        }
        let Ok(needed) = u32::try_from(self.slaves_needed) else {
            return Err((NEEDED, ValueError::Needed(self.slaves_needed)));
        };
        path(&self.slave_executable).map_err(|problem| (EXECUTABLE, problem))?;
        list(&self.slave_libraries, path).map_err(|problem| (EXECUTABLE, problem))?;
        list(&self.slave_arguments, text).map_err(|problem| (ARGUMENTS, problem))?;
        Ok(Demand {
            status,
            written_at,
            member_id: self.member_id,
            update_interval: self.update_interval,
            needed,
            worker: Worker {
                program: self.slave_executable,
                libraries: self.slave_libraries,
                arguments: self.slave_arguments,
            },
        })
    }
}

fn text(text: &str) -> Result<(), ValueError> {
    if text.chars().count() > MAX_TEXT_CHARACTERS {
        return Err(ValueError::LongText);
    }
    match text.chars().any(char::is_control) {
        true => Err(ValueError::Control(text.chars().take(80).collect())),
        false => Ok(()),
    }
}

fn path(path: &str) -> Result<(), ValueError> {
    text(path)?;
    match path.starts_with('/') {
        true => Ok(()),
        false => Err(ValueError::NotAbsolute(path.to_owned())),
    }
}

fn list(
    words: &[String],
    check: impl Fn(&str) -> Result<(), ValueError>,
) -> Result<(), ValueError> {
    if words.len() > MAX_LIST_ITEMS {
        return Err(ValueError::LongList);
    }
    words.iter().try_for_each(|word| check(word))
}

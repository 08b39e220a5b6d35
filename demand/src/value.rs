//! What values can be, the same in both forms of the file.

use crate::{Demand, Status, UNIVERSAL_EPOCH, Worker};

/// A week: a file that is written more seldom tells nothing about now.
const LONGEST_INTERVAL: u64 = 7 * 86_400;
/// In a text.
const MOST_CHARACTERS: usize = 4096;
/// In a list.
const MOST_WORDS: usize = 1000;

/// Why a value cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A time that was before there were such files.
    #[error(
        "{0} is before 1970: it is Lisp's universal time, seconds since 1900, so Unix time and {UNIVERSAL_EPOCH}"
    )]
    Timestamp(u64),
    /// A time no clock shows.
    #[error("{0} is thousands of years from now")]
    FarFuture(u64),
    /// A word that is none of those.
    #[error("{0:?} is neither in-progress nor finished")]
    Status(String),
    /// Seconds between two writings.
    #[error("{0} s is not between a second and a week")]
    Interval(u64),
    /// More than anybody has.
    #[error("{0} is more workers than there are")]
    Needed(u64),
    /// A path that means something else everywhere.
    #[error("{0:?} is not an absolute path")]
    NotAbsolute(String),
    /// A text that says nothing.
    #[error("it is empty")]
    Empty,
    /// A text that could be more than one word to somebody.
    #[error("{0:?} holds a control character")]
    Control(String),
    /// A text that is too long.
    #[error("a text is longer than {MOST_CHARACTERS} characters")]
    LongText,
    /// A list that is too long.
    #[error("a list has more than {MOST_WORDS} texts")]
    LongList,
}

/// What was read, before it was looked at.
pub struct Raw {
    pub status: String,
    pub timestamp: u64,
    pub member_id: String,
    pub update_interval: u64,
    pub needed: u64,
    pub program: String,
    pub libraries: Vec<String>,
    pub arguments: Vec<String>,
}

/// Keys of the format, in the order in which they are written.
pub const STATUS: &str = "computation-status";
pub const TIMESTAMP: &str = "timestamp";
pub const MEMBER: &str = "member-id";
pub const INTERVAL: &str = "update-interval";
pub const NEEDED: &str = "slaves-needed";
pub const EXECUTABLE: &str = "slave-executable";
pub const ARGUMENTS: &str = "slave-arguments";

impl Raw {
    /// The demand, or which key is wrong.
    pub fn check(self) -> Result<Demand, (&'static str, ValueError)> {
        let Some(status) = Status::parse(&self.status) else {
            return Err((STATUS, ValueError::Status(self.status)));
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
        if !(1..=LONGEST_INTERVAL).contains(&self.update_interval) {
            return Err((INTERVAL, ValueError::Interval(self.update_interval)));
        }
        let Ok(needed) = u32::try_from(self.needed) else {
            return Err((NEEDED, ValueError::Needed(self.needed)));
        };
        path(&self.program).map_err(|problem| (EXECUTABLE, problem))?;
        list(&self.libraries, path).map_err(|problem| (EXECUTABLE, problem))?;
        list(&self.arguments, text).map_err(|problem| (ARGUMENTS, problem))?;
        Ok(Demand {
            status,
            written_at,
            member_id: self.member_id,
            update_interval: self.update_interval,
            needed,
            worker: Worker {
                program: self.program,
                libraries: self.libraries,
                arguments: self.arguments,
            },
        })
    }
}

fn text(text: &str) -> Result<(), ValueError> {
    if text.chars().count() > MOST_CHARACTERS {
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
    if words.len() > MOST_WORDS {
        return Err(ValueError::LongList);
    }
    words.iter().try_for_each(|word| check(word))
}

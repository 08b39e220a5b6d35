//! How many workers a queue could use, as a file for whoever can start workers.
//!
//! The file is CL-MW's resource file, or the same in JSON. It is read as data: nothing in it is ever evaluated, and
//! what is not exactly in the format is refused with its place. No I/O and no clock here.

mod json;
mod lisp;
mod syntax;
mod value;

use sha2::{Digest, Sha256};

pub use json::to_json;
pub use lisp::to_lisp;
pub use syntax::{Place, Syntax};
pub use value::ValueError;

/// Seconds from 1900, where Lisp's universal time begins, to 1970.
pub const UNIVERSAL_EPOCH: u64 = 2_208_988_800;
/// A longer file is not read. A real one has a few hundred bytes.
pub const LONGEST: usize = 64 << 10;

/// Whether there will be more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The computation goes on.
    InProgress,
    /// It is over: no worker is wanted any more.
    Finished,
}

impl Status {
    /// As the file spells it, without Lisp's colon.
    pub fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in-progress",
            Self::Finished => "finished",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::InProgress, Self::Finished]
            .into_iter()
            .find(|status| status.word() == word)
    }
}

/// What a worker is started as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Absolute path of the program.
    pub program: String,
    /// Absolute paths of the shared libraries that it wants beside it.
    pub libraries: Vec<String>,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// What a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Whether there will be more to do.
    pub status: Status,
    /// When it was written, in seconds since 1970.
    pub written_at: u64,
    /// The name of who wrote it, which its workers show when they come.
    pub member_id: String,
    /// Seconds until it is written again.
    pub update_interval: u64,
    /// Workers wanted beside those that are at work.
    pub needed: u32,
    /// What to start.
    pub worker: Worker,
}

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Its size.
    #[error("it is longer than {} KiB, which no demand file is", LONGEST >> 10)]
    TooLong,
    /// Its bytes.
    #[error("byte {0} is not UTF-8 text")]
    NotText(usize),
    /// Something at a place in it.
    #[error("{0}: {1}")]
    At(Place, Problem),
    /// A key that must be there.
    #[error("there is no {0} in it")]
    Missing(&'static str),
    /// As JSON.
    #[error("as JSON: {0}")]
    Json(String),
    /// A value of the JSON form.
    #[error("{key}: {problem}")]
    Value {
        /// Which.
        key: &'static str,
        /// What is wrong with it.
        problem: ValueError,
    },
}

/// What is wrong at a place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is not the data that can be here at all.
    #[error(transparent)]
    Syntax(#[from] Syntax),
    /// It is data, and not a form of this format.
    #[error("a form looks like (:keyword value), and this is {0}")]
    NotAForm(&'static str),
    /// A form with too few or too many values.
    #[error(":{0} has one value, and this form has {1}")]
    ValueCount(String, usize),
    /// A form that was there already.
    #[error(":{key} was there before, on line {line}")]
    Twice {
        /// Which.
        key: String,
        /// Where the first is.
        line: usize,
    },
    /// A value of another type.
    #[error(":{key} is {expected}, and this is {found}")]
    Type {
        /// Which.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A value that cannot be.
    #[error(":{key}: {problem}")]
    Value {
        /// Which.
        key: &'static str,
        /// What is wrong with it.
        problem: ValueError,
    },
}

impl Demand {
    /// Reads a file, in whichever of the two forms it is.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        if bytes.len() > LONGEST {
            return Err(ReadError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|e| ReadError::NotText(e.valid_up_to()))?;
        match text.trim_start().starts_with('{') {
            true => json::read(text),
            false => lisp::read(text),
        }
    }

    /// What to start. CL-MW's master leaves its member id out of the arguments of its slaves, and then refuses those
    /// that come without it.
    pub fn command(&self) -> Worker {
        let mut worker = self.worker.clone();
        let has = |word: &str| worker.arguments.iter().any(|argument| argument == word);
        if has("--mw-slave") && !has("--mw-member-id") {
            worker.arguments.push("--mw-member-id".to_owned());
            worker.arguments.push(self.member_id.clone());
        }
        worker
    }
}

impl Worker {
    /// A short name for exactly this command: another one has another.
    pub fn mark(&self) -> String {
        let mut hash = Sha256::new();
        let lists = [
            std::slice::from_ref(&self.program),
            &self.libraries,
            &self.arguments,
        ];
        for list in lists {
            // Lengths, so that no two commands are spelled the same.
            hash.update((list.len() as u64).to_be_bytes());
            for word in list {
                hash.update((word.len() as u64).to_be_bytes());
                hash.update(word);
            }
        }
        let digest = hash.finalize();
        digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

#[cfg(test)]
mod tests;

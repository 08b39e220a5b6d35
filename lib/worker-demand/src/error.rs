//! Why a demand file is refused, with the position in the file where possible.

use crate::demand::MAX_FILE_BYTES;
use crate::sexpr::{Position, SyntaxError};
use crate::value::ValueError;

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("the file is longer than {} KiB, the maximum of a demand file", MAX_FILE_BYTES >> 10)]
    TooLong,
    #[error("byte {0} is not UTF-8 text")]
    NotText(usize),
    /// A problem at a position.
    #[error("{0}: {1}")]
    At(Position, Problem),
    /// A required key is missing.
    #[error("the key {0} is missing")]
    Missing(&'static str),
    /// Not valid JSON of this format.
    #[error("as JSON: {0}")]
    Json(String),
    /// A value in the JSON form is not allowed.
    #[error("{key}: {problem}")]
    Value { key: String, problem: ValueError },
}

/// Problem at a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not an S-expression of the allowed subset.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// An S-expression that is not a form.
    #[error("a form looks like (:keyword value), and this is {0}")]
    NotAForm(&'static str),
    /// A form with too few or too many values.
    #[error(":{0} has one value, and this form has {1}")]
    ValueCount(String, usize),
    /// A second form with the same key.
    #[error(":{key} is already on line {line}")]
    Duplicate { key: String, line: usize },
    /// A value of the wrong type.
    #[error(":{key} is {expected}, and this is {found}")]
    Type {
        key: &'static str,
        expected: &'static str,
        found: &'static str,
    },
    /// A value that is not allowed.
    #[error(":{key}: {problem}")]
    Value {
        key: &'static str,
        problem: ValueError,
    },
}

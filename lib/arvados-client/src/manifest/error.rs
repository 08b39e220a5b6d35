//! Errors of reading and building manifests.

use crate::locator::LocatorError;

/// Why a manifest cannot be read or built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The text is truncated.
    #[error("the manifest does not end in a newline, so part of it may be missing")]
    NoFinalNewline,
    /// A token of the text is wrong.
    #[error("line {line} of the manifest, at {token:?}: {problem}")]
    Token {
        /// Counted from 1.
        line: usize,
        /// The token, shortened if it is very long.
        token: String,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The expanded manifest would take too much memory.
    #[error("the manifest describes more than {limit} pieces of files; it is damaged or malicious")]
    TooManyExtents {
        /// The limit.
        limit: u64,
    },
    /// A path cannot name a file in a collection.
    #[error("{path:?} cannot be a path in a collection: {problem}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The same path would be a file and a directory.
    #[error("{path:?} would be both a file and a directory")]
    FileAndDirectory {
        /// The path.
        path: String,
    },
    /// A piece of a file lies outside its block.
    #[error(
        "file {path:?} refers to bytes up to {end} of block {block}, which has only {size} bytes"
    )]
    OutsideBlock {
        /// The file.
        path: String,
        /// The block, without signature.
        block: String,
        /// First byte after the piece.
        end: u64,
        /// Size of the block.
        size: u64,
    },
    /// The path does not exist.
    #[error("there is no {path:?} in the collection")]
    NoSuchPath {
        /// The path.
        path: String,
    },
}

/// Problem of a token or path; the messages explain the variants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the line is empty")]
    EmptyLine,
    #[error("tokens must be separated by exactly one space")]
    EmptyToken,
    #[error("a stream name must be \".\" or begin with \"./\"")]
    StreamName,
    #[error("a name must not be empty or have an empty part between slashes")]
    EmptyName,
    #[error("\".\" and \"..\" cannot be names of files or directories")]
    DotName,
    #[error("white space and control characters must be written as \\ooo")]
    RawControl,
    #[error("a backslash must begin an octal escape from \\000 to \\377")]
    Escape,
    #[error("the escaped bytes are not UTF-8 text")]
    NotUtf8,
    #[error("the stream has no block locator")]
    NoLocator,
    #[error("the stream has no file")]
    NoFile,
    #[error("{0}")]
    Locator(#[from] LocatorError),
    #[error("a file must be written as position:length:name")]
    FileToken,
    #[error("the segment ends at byte {end}, but the stream has only {size} bytes")]
    OutsideStream { end: u64, size: u64 },
    #[error("the blocks of the stream add up to more than 2^64 bytes")]
    StreamTooLarge,
    #[error("this path is also a directory")]
    IsDirectory,
}

//! Parses the text of a manifest strictly, so that an accepted manifest needs no further checks.

use std::collections::HashSet;
use std::str::FromStr;
use std::sync::Arc;

use super::error::{ManifestError, Problem};
use super::escape::unescape;
use super::{Manifest, Segment, Stream, path};
use crate::locator::Locator;

/// Maximum number of extents in a manifest: more than in real collections, and few enough for
/// memory.
const MAX_EXTENTS: u64 = 1 << 24;

impl Manifest {
    /// Reads a manifest. The empty text is the empty collection.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        parse(text)
    }
}

impl FromStr for Manifest {
    type Err = ManifestError;
    fn from_str(text: &str) -> Result<Self, ManifestError> {
        Self::parse(text)
    }
}

fn parse(text: &str) -> Result<Manifest, ManifestError> {
    if text.is_empty() {
        return Ok(Manifest::default());
    }
    let body = text
        .strip_suffix('\n')
        .ok_or(ManifestError::NoFinalNewline)?;
    let mut streams = Vec::new();
    let mut extents = 0;
    for (index, line) in body.split('\n').enumerate() {
        let at_token = |(token, problem): (&str, Problem)| ManifestError::Token {
            line: index + 1,
            token: shorten(token),
            problem,
        };
        streams.push(parse_stream(line, &mut extents).map_err(at_token)?);
        if extents > MAX_EXTENTS {
            return Err(ManifestError::TooManyExtents { limit: MAX_EXTENTS });
        }
    }
    check_directories(&streams)?;
    Ok(Manifest { streams })
}

/// Parses a line. An error comes with its token.
fn parse_stream<'a>(line: &'a str, extents: &mut u64) -> Result<Stream, (&'a str, Problem)> {
    if line.is_empty() {
        return Err((line, Problem::EmptyLine));
    }
    let mut tokens = line.split(' ').peekable();
    let first = tokens.next().unwrap_or_default();
    let name = stream_name(first).map_err(|problem| (first, problem))?;

    let mut blocks = Vec::new();
    let mut starts = Vec::new();
    let mut size = 0u64;
    while let Some(token) = tokens.next_if(|token| !is_file_token(token)) {
        if token.is_empty() {
            return Err((line, Problem::EmptyToken));
        }
        let block = Locator::parse(token).map_err(|e| (token, e.into()))?;
        starts.push(size);
        size = size
            .checked_add(block.size)
            .ok_or((token, Problem::StreamTooLarge))?;
        blocks.push(Arc::new(block));
    }
    if blocks.is_empty() {
        return Err((first, Problem::NoLocator));
    }

    let mut segments = Vec::new();
    for token in tokens {
        if token.is_empty() {
            return Err((line, Problem::EmptyToken));
        }
        let segment = segment(token, size).map_err(|problem| (token, problem))?;
        let end = segment.position + segment.length;
        let before = |limit: u64| starts.partition_point(|start| *start < limit) as u64;
        *extents += before(end)
            .saturating_sub(before(segment.position + 1))
            .saturating_add(1);
        segments.push(segment);
    }
    if segments.is_empty() {
        return Err((first, Problem::NoFile));
    }
    Ok(Stream {
        name,
        blocks,
        segments,
    })
}

fn stream_name(token: &str) -> Result<String, Problem> {
    let name = unescape(token)?;
    match name.strip_prefix("./") {
        Some(dir) => path::check_names(dir)?,
        None if name == "." => {}
        None => return Err(Problem::StreamName),
    }
    Ok(name.into_owned())
}

/// Whether a token is a file token: they have two colons, locators none.
fn is_file_token(token: &str) -> bool {
    token.contains(':')
}

fn segment(token: &str, stream_size: u64) -> Result<Segment, Problem> {
    let mut parts = token.splitn(3, ':');
    let mut number = || -> Result<u64, Problem> {
        let text = parts.next().unwrap_or_default();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Problem::FileToken);
        }
        text.parse().map_err(|_| Problem::FileToken)
    };
    let (position, length) = (number()?, number()?);
    let name = unescape(parts.next().ok_or(Problem::FileToken)?)?;
    let end = position.saturating_add(length);
    if end > stream_size || position.checked_add(length).is_none() {
        return Err(Problem::OutsideStream {
            end,
            size: stream_size,
        });
    }
    // A "file" named "." without content is how the SDKs write an empty directory.
    if name != "." || length != 0 {
        path::check_names(&name)?;
    }
    Ok(Segment {
        position,
        length,
        name: name.into_owned(),
    })
}

/// Checks that no file has the path of a directory.
fn check_directories(streams: &[Stream]) -> Result<(), ManifestError> {
    let mut directories: HashSet<String> = HashSet::new();
    let mut add = |path: &str| {
        for directory in path::ancestors(path) {
            if directories.contains(directory) {
                break; // its ancestors are there too
            }
            directories.insert(directory.to_owned());
        }
    };
    for stream in streams {
        // The name stands for any file in the stream, so that the directory of the stream is an
        // ancestor.
        add(&path::join(&stream.name, "."));
        for segment in stream.segments.iter().filter(|s| s.name.contains('/')) {
            add(&path::join(&stream.name, &segment.name));
        }
    }
    for (index, stream) in streams.iter().enumerate() {
        for segment in &stream.segments {
            if directories.contains(&path::join(&stream.name, &segment.name)) {
                return Err(ManifestError::Token {
                    line: index + 1,
                    token: shorten(&segment.name),
                    problem: Problem::IsDirectory,
                });
            }
        }
    }
    Ok(())
}

fn shorten(token: &str) -> String {
    const LIMIT: usize = 100;
    match token.char_indices().nth(LIMIT) {
        Some((at, _)) => format!("{}…", &token[..at]),
        None => token.to_owned(),
    }
}

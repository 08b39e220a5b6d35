//! Responds to requests for the log. In: the request, the log directory. Out: a response whose body
//! is read from the file in pieces, up to the size of the file at the time of the request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arvados_client::byte_range::Part;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::listing::{Entry, FileMetadata, http_date, multistatus};
use super::request::{ALLOWED, LogPath, LogRequest};
use crate::logs::{FILES, LogDir};

/// Maximum number of bytes of a file in memory for one request.
const CHUNK: usize = 32 << 10;

pub type Body = UnsyncBoxBody<Bytes, io::Error>;
/// Number of pieces handed over; it grows while a client reads.
pub type Progress = Arc<AtomicU64>;

/// Responds to a request. An error is a failure of the node.
pub async fn answer(
    wanted: LogRequest,
    headers: &HeaderMap,
    logs: &LogDir,
    progress: &Progress,
) -> io::Result<Response<Body>> {
    match wanted {
        LogRequest::Abilities => {
            let mut response = Response::new(empty());
            let headers = response.headers_mut();
            headers.insert("dav", HeaderValue::from_static("1, 2"));
            headers.insert(header::ALLOW, allow());
            Ok(response)
        }
        LogRequest::Content { name, with_body } => {
            let Some((file, facts)) = open(logs, name).await? else {
                return Ok(missing());
            };
            content(file, facts, headers, with_body.then_some(progress)).await
        }
        LogRequest::Properties { of, path } => properties(of, &path, logs).await,
    }
}

/// A response that is one sentence.
pub fn text_response(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(full(format!("{text}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(TEXT));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(header::ALLOW, allow());
    }
    response
}

const TEXT: &str = "text/plain; charset=utf-8";

fn content_type(name: &str) -> &'static str {
    match name.ends_with(".json") {
        true => "application/json",
        false => TEXT,
    }
}

fn missing() -> Response<Body> {
    text_response(
        StatusCode::NOT_FOUND,
        "the log does not have this file (yet)",
    )
}

fn allow() -> HeaderValue {
    HeaderValue::try_from(ALLOWED.join(", ")).expect("names of methods")
}

/// Opens the file; `None` if it is missing or not a regular file.
async fn open(logs: &LogDir, name: &'static str) -> io::Result<Option<(File, FileMetadata)>> {
    let mut options = tokio::fs::OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(logs.file(name)).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata().await?;
    let facts = FileMetadata {
        size: metadata.len(),
        modified: metadata
            .modified()
            .ok()
            .and_then(|time| Timestamp::try_from(time).ok()),
        content_type: content_type(name),
    };
    Ok(metadata.is_file().then_some((file, facts)))
}

async fn content(
    mut file: File,
    facts: FileMetadata,
    request_headers: &HeaderMap,
    progress: Option<&Progress>,
) -> io::Result<Response<Body>> {
    let range = request_headers.get(header::RANGE);
    // Files have no versions here, so a conditional range is answered with the whole file.
    let range = range.filter(|_| !request_headers.contains_key(header::IF_RANGE));
    let part = Part::of(range.and_then(|value| value.to_str().ok()), facts.size);
    let (status, bytes) = match &part {
        Part::Whole => (StatusCode::OK, 0..facts.size),
        Part::Bytes(bytes) => (StatusCode::PARTIAL_CONTENT, bytes.clone()),
        Part::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
    };
    let length = bytes.end - bytes.start;
    let body = match progress {
        Some(progress) if length > 0 => {
            file.seek(io::SeekFrom::Start(bytes.start)).await?;
            pieces(file, length, progress.clone())
        }
        _ => empty(),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length.into());
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(facts.content_type),
    );
    if let Some(time) = facts.modified.and_then(http_date) {
        headers.insert(header::LAST_MODIFIED, value(time)?);
    }
    if let Some(range) = part.content_range(facts.size) {
        headers.insert(header::CONTENT_RANGE, value(range)?);
    }
    Ok(response)
}

/// Streams `length` bytes from the current position.
fn pieces(mut file: File, length: u64, progress: Progress) -> Body {
    file.set_max_buf_size(CHUNK);
    let stream = ReaderStream::with_capacity(file.take(length), CHUNK)
        .inspect(move |_| {
            progress.fetch_add(1, Ordering::Relaxed);
        })
        .map_ok(Frame::data);
    StreamBody::new(stream).boxed_unsync()
}

async fn properties(of: LogPath, path: &str, logs: &LogDir) -> io::Result<Response<Body>> {
    let base = path.trim_end_matches('/');
    let mut entries = Vec::new();
    let names = match of {
        LogPath::File(name) => vec![(name, path.to_owned())],
        LogPath::Directory { with_files } => {
            entries.push(Entry {
                href: format!("{base}/"),
                name: base.rsplit('/').next().unwrap_or_default(),
                file: None,
            });
            let files = FILES.into_iter().filter(|_| with_files);
            files.map(|name| (name, format!("{base}/{name}"))).collect()
        }
    };
    for (name, href) in names {
        let file = open(logs, name).await?.map(|(_, facts)| facts);
        if file.is_some() {
            entries.push(Entry { href, name, file });
        }
    }
    if entries.is_empty() {
        return Ok(missing());
    }
    let mut response = Response::new(full(multistatus(&entries)));
    *response.status_mut() = StatusCode::MULTI_STATUS;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/xml; charset=utf-8"),
    );
    Ok(response)
}

fn value(text: String) -> io::Result<HeaderValue> {
    HeaderValue::try_from(text).map_err(io::Error::other)
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

fn full(text: String) -> Body {
    Full::new(Bytes::from(text))
        .map_err(|never| match never {})
        .boxed_unsync()
}

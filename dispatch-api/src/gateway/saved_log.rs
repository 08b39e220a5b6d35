//! Serves a saved log like Arvados' WebDAV server: files with ranges, and listings.

use std::io::{self, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use arvados_client::byte_range::Part;
use arvados_client::manifest::{Entry, EntryKind, Extent, FileTree};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderMap, Method, StatusCode, header};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use crate::blocks::store::BlockStore;
use crate::error::{ApiError, Result};
use crate::gateway::propfind::{multistatus, parse_depth};

/// Size in bytes of the chunks read from a block.
const STREAM_CHUNK_BYTES: usize = 64 << 10;

/// Methods that the log of a request supports.
pub const ALLOWED_METHODS: &str = "OPTIONS, GET, HEAD, PROPFIND";

/// The files of a log, and the requested path.
pub struct SavedLog {
    pub tree: FileTree,
    /// The URL path of the root of the tree.
    pub prefix: String,
    /// The requested path below the prefix, without slashes at its ends.
    pub path: String,
    /// The time when the log was saved, as an HTTP date.
    pub modified: String,
}

/// The response to OPTIONS.
pub fn options_response() -> Response {
    let headers = [
        (header::ALLOW.as_str(), ALLOWED_METHODS),
        ("dav", "1, 2"),
        ("ms-author-via", "DAV"),
    ];
    (StatusCode::OK, headers).into_response()
}

impl SavedLog {
    pub fn respond(
        self,
        blocks: &Arc<BlockStore>,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Response> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let missing = || ApiError::NotFound("Not Found".into());
        let entry = self.tree.lookup(&self.path).ok_or_else(missing)?;
        match (method.as_str(), entry) {
            ("PROPFIND", entry) => {
                let depth = parse_depth(text("depth"))
                    .ok_or_else(|| ApiError::BadRequest("Depth must be 0, 1 or infinity".into()))?;
                Ok(self.listing(entry, depth))
            }
            (_, Entry::Directory) => {
                let headers = [(header::ALLOW, "OPTIONS, PROPFIND")];
                Ok((StatusCode::METHOD_NOT_ALLOWED, headers).into_response())
            }
            (_, Entry::File(extents)) => {
                // Files have no etag here, so `If-Range` never matches and the whole file is sent.
                let wanted = text("range").filter(|_| text("if-range").is_none());
                Ok(self.content(blocks, extents, wanted, method == Method::HEAD))
            }
        }
    }

    fn listing(&self, entry: Entry<'_>, depth: u32) -> Response {
        let kind = match entry {
            Entry::Directory => EntryKind::Directory,
            Entry::File(extents) => EntryKind::File {
                size: size_of(extents),
            },
        };
        let (prefix, path) = (&self.prefix, &self.path);
        let xml = multistatus(&self.tree, prefix, path, kind, depth, &self.modified);
        let headers = [(header::CONTENT_TYPE, "text/xml; charset=utf-8")];
        (StatusCode::MULTI_STATUS, headers, xml).into_response()
    }

    fn content(
        &self,
        blocks: &Arc<BlockStore>,
        extents: &[Extent],
        wanted: Option<&str>,
        head_only: bool,
    ) -> Response {
        let size = size_of(extents);
        let part = Part::of(wanted, size);
        let (status, bytes) = match &part {
            Part::Whole => (StatusCode::OK, 0..size),
            Part::Bytes(bytes) => (StatusCode::PARTIAL_CONTENT, bytes.clone()),
            Part::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
        };
        let length = bytes.end - bytes.start;
        let mut response = http::Response::builder()
            .status(status)
            .header(header::CONTENT_TYPE, content_type(&self.path))
            .header(header::CONTENT_LENGTH, length)
            .header(header::ACCEPT_RANGES, "bytes")
            .header(header::LAST_MODIFIED, &self.modified)
            .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        if let Some(range) = part.content_range(size) {
            response = response.header(header::CONTENT_RANGE, range);
        }
        let body = match head_only {
            true => Body::empty(),
            false => Body::from_stream(stream_extents(
                blocks.clone(),
                extents_of_range(extents, bytes),
            )),
        };
        response.body(body).unwrap_or_default()
    }
}

fn size_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.len).sum()
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("txt" | "log") => "text/plain; charset=utf-8",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    }
}

/// The extents that contain a byte range of a file.
fn extents_of_range(extents: &[Extent], bytes: Range<u64>) -> Vec<Extent> {
    let mut start = 0;
    let mut extents_of_range = Vec::new();
    for extent in extents {
        let end = start + extent.len;
        let (first, last) = (bytes.start.max(start), bytes.end.min(end));
        if first < last {
            extents_of_range.push(Extent {
                locator: extent.locator.clone(),
                offset: extent.offset + (first - start),
                len: last - first,
            });
        }
        start = end;
    }
    extents_of_range
}

fn stream_extents(
    blocks: Arc<BlockStore>,
    extents: Vec<Extent>,
) -> impl Stream<Item = io::Result<Bytes>> {
    stream::iter(extents)
        .then(move |extent| read(blocks.clone(), extent))
        .try_flatten()
}

async fn read(
    blocks: Arc<BlockStore>,
    extent: Extent,
) -> io::Result<impl Stream<Item = io::Result<Bytes>> + use<>> {
    let hash = extent.locator.hash;
    let open = tokio::task::spawn_blocking(move || blocks.open_checked(hash));
    let opened = open.await.map_err(io::Error::other)?;
    let opened = opened.map_err(io::Error::other)?;
    let (file, _) = opened.ok_or(io::ErrorKind::NotFound)?;
    let mut file = tokio::fs::File::from_std(file);
    file.seek(SeekFrom::Start(extent.offset)).await?;
    Ok(ReaderStream::with_capacity(
        file.take(extent.len),
        STREAM_CHUNK_BYTES,
    ))
}

#[cfg(test)]
mod tests {
    use arvados_client::manifest::Manifest;

    use super::*;

    #[test]
    fn some_bytes_of_a_file_are_some_bytes_of_its_blocks() {
        let text =
            ". acbd18db4cc2f85cedef654fccc4a4d8+3 37b51d194a7513e45b56f6524f2d51f2+3 1:4:f\n";
        let tree = Manifest::parse(text).unwrap().tree();
        let Some(Entry::File(extents)) = tree.lookup("f") else {
            panic!("no file");
        };
        let of = |bytes| -> Vec<(u64, u64)> {
            let extents_of_range = extents_of_range(extents, bytes);
            extents_of_range
                .iter()
                .map(|extent| (extent.offset, extent.len))
                .collect()
        };
        assert_eq!(of(0..4), [(1, 2), (0, 2)]);
        assert_eq!(of(1..3), [(2, 1), (0, 1)]);
        assert_eq!(of(3..4), [(1, 1)]);
        assert_eq!(of(2..2), []);
    }
}

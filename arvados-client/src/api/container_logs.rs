//! The log of a container while it runs: `container_requests/{uuid}/log/{container uuid}/{file}`.
//!
//! The server passes reads on to the container's crunch-run while that has a gateway, and otherwise answers with the
//! files that were saved last. Both have the same bytes at the same offsets.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_RANGE, RANGE};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::Error as _;

use crate::client::{Call, Client};
use crate::error::Error;
use crate::ids::{ContainerRequestUuid, ContainerUuid};

/// Everything in a path but what a URL takes as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// What reading a file from an offset gave.
#[derive(Debug)]
pub enum LogRange {
    /// What follows the offset, if anything.
    Data(LogStream),
    /// The file ends at the offset, or before.
    NothingNew,
    /// There is no such file yet, or the server does not know the call.
    NoFile,
    /// The container's gateway or the place of saved logs cannot be reached now.
    Unavailable,
}

/// The rest of a file, as it comes.
#[derive(Debug)]
pub struct LogStream {
    client: Client,
    response: reqwest::Response,
    /// Bytes before the offset that the server sends all the same.
    skip: u64,
}

/// A file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// Its path in the log.
    pub name: String,
    /// Bytes, so far.
    pub size: u64,
}

impl LogStream {
    /// The next piece, as large as the network gives it; none at the end.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let next = self.response.chunk().await;
            let Some(mut chunk) = next.map_err(|source| self.client.broken(source))? else {
                return Ok(None);
            };
            let skipped = usize::try_from(self.skip).map_or(chunk.len(), |n| n.min(chunk.len()));
            self.skip -= skipped as u64;
            let rest = chunk.split_off(skipped);
            if !rest.is_empty() {
                return Ok(Some(rest));
            }
        }
    }
}

impl Client {
    /// A file of a container's log, from an offset on. Asked once: whoever follows a log asks again anyway.
    pub async fn container_log(
        &self,
        request: &ContainerRequestUuid,
        container: &ContainerUuid,
        file: &str,
        offset: u64,
    ) -> Result<LogRange, Error> {
        let path = format!(
            "{}{}",
            root(request, container),
            utf8_percent_encode(file, ENCODED)
        );
        let call = Call::get(path).header(RANGE, format!("bytes={offset}-"));
        let response = match self.open_once(&call).await {
            Ok(response) => response,
            Err(error) => return refusal(error),
        };
        let begin = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get(CONTENT_RANGE);
                range.and_then(|range| first_byte(range.to_str().ok()?))
            }
            // The whole file, as servers answer where it is empty.
            _ => Some(0),
        };
        // Of bytes whose place is not known, or that begin later, none can be used.
        Ok(match begin.and_then(|begin| offset.checked_sub(begin)) {
            Some(skip) => LogRange::Data(LogStream {
                client: self.clone(),
                response,
                skip,
            }),
            None => LogRange::Unavailable,
        })
    }

    /// The files of a container's log, without directories; none if the server does not know the call.
    pub async fn container_log_files(
        &self,
        request: &ContainerRequestUuid,
        container: &ContainerUuid,
    ) -> Result<Option<Vec<LogFile>>, Error> {
        let path = root(request, container);
        let label = format!("PROPFIND {path}");
        let unreadable = |detail: String| Error::Undecodable {
            host: self.endpoint().host.clone(),
            call: label.clone(),
            source: serde_json::Error::custom(detail),
        };
        let call = Call::list_files(path).map_err(|error| unreadable(error.to_string()))?;
        let body = match self.send_raw(&call).await {
            Ok(body) => body,
            Err(error) => return refusal(error).map(|_| None),
        };
        let text = String::from_utf8(body).map_err(|error| unreadable(error.to_string()))?;
        // Another kind of answer to a method that the server does not know.
        if !text.trim_start().starts_with('<') {
            return Ok(None);
        }
        files(&text)
            .map(Some)
            .map_err(|error| unreadable(error.to_string()))
    }
}

fn root(request: &ContainerRequestUuid, container: &ContainerUuid) -> String {
    format!("container_requests/{request}/log/{container}/")
}

/// What refusals mean that belong to the call.
fn refusal(error: Error) -> Result<LogRange, Error> {
    match error.status() {
        Some(StatusCode::RANGE_NOT_SATISFIABLE) => Ok(LogRange::NothingNew),
        Some(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => Ok(LogRange::NoFile),
        Some(status) if status.is_server_error() => Ok(LogRange::Unavailable),
        _ => Err(error),
    }
}

/// `a` of `bytes a-b/size`.
fn first_byte(range: &str) -> Option<u64> {
    let (begin, _) = range.strip_prefix("bytes ")?.split_once('-')?;
    begin.trim().parse().ok()
}

/// The files in a WebDAV listing (`multistatus`); what is named with a `/` at its end is a directory.
fn files(listing: &str) -> Result<Vec<LogFile>, roxmltree::Error> {
    let document = roxmltree::Document::parse(listing)?;
    let child = |node: &roxmltree::Node<'_, '_>, name: &str| {
        let mut found = node.descendants().filter(|n| n.tag_name().name() == name);
        found.find_map(|n| n.text().map(|text| text.trim().to_owned()))
    };
    let responses = document
        .descendants()
        .filter(|node| node.tag_name().name() == "response");
    let mut files: Vec<LogFile> = responses
        .filter(|node| {
            !node
                .descendants()
                .any(|n| n.tag_name().name() == "collection")
        })
        .filter_map(|node| {
            let href = child(&node, "href")?;
            let (_, name) = href.rsplit_once('/')?;
            let name = percent_decode_str(name).decode_utf8().ok()?.into_owned();
            let size = child(&node, "getcontentlength").and_then(|size| size.parse().ok());
            (!name.is_empty()).then(|| LogFile {
                name,
                size: size.unwrap_or(0),
            })
        })
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_names_files_and_not_directories() {
        let listing = r#"<?xml version="1.0" encoding="UTF-8"?>
<D:multistatus xmlns:D="DAV:"><D:response>
<D:href>/arvados/v1/container_requests/r/log/c/</D:href>
<D:propstat><D:prop><D:resourcetype><D:collection xmlns:D="DAV:"/></D:resourcetype></D:prop></D:propstat></D:response>
<D:response><D:href>/arvados/v1/container_requests/r/log/c/stdout.txt</D:href><D:propstat><D:prop>
<D:resourcetype></D:resourcetype><D:getcontentlength>12</D:getcontentlength></D:prop>
<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>
<response xmlns="DAV:"><href>/arvados/v1/container_requests/r/log/c/a%20b&amp;c.txt</href></response>
<D:response><D:href>/arvados/v1/container_requests/r/log/c/sub/</D:href></D:response>
</D:multistatus>"#;
        let file = |name: &str, size| LogFile {
            name: name.to_owned(),
            size,
        };
        let expected = [file("a b&c.txt", 0), file("stdout.txt", 12)];
        assert_eq!(files(listing).unwrap(), expected);
        assert!(files("<html><p>").is_err());
        assert!(files("<!DOCTYPE x [<!ENTITY a \"b\">]><x>&a;</x>").is_err());
    }

    #[test]
    fn the_place_of_a_range_is_read() {
        let rows = [
            ("bytes 6-11/12", Some(6)),
            ("bytes 0-0/*", Some(0)),
            ("bytes */12", None),
            ("items 6-11/12", None),
            ("bytes x-11/12", None),
        ];
        for (range, begin) in rows {
            assert_eq!(first_byte(range), begin, "{range}");
        }
    }
}

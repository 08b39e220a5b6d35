//! The log of a container while it runs: `container_requests/{uuid}/log/{container uuid}/{file}`.
//!
//! The server forwards reads to the gateway of crunch-run, if there is one, else it sends the files
//! that were saved last. Both have the same bytes at the same offsets.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_RANGE, RANGE};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::Error as _;

use crate::client::{Call, Client};
use crate::error::Error;
use crate::ids::{ContainerRequestUuid, ContainerUuid};

/// Characters of a path that must be encoded in a URL.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// Result of reading a file from an offset.
#[derive(Debug)]
pub enum LogRange {
    /// The bytes after the offset.
    Data(LogStream),
    /// The file ends at the offset, or before.
    NothingNew,
    /// The file does not exist yet, or the server does not have the call.
    NoFile,
    /// The gateway or the saved log is unreachable now.
    Unavailable,
}

/// Stream of the rest of a file.
#[derive(Debug)]
pub struct LogStream {
    client: Client,
    response: reqwest::Response,
    /// Number of bytes to skip, which the server sends before the offset.
    skip: u64,
}

impl LogStream {
    /// The next chunk of the response; `None` at the end.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let next = self.response.chunk().await;
            let Some(mut chunk) = next.map_err(|source| self.client.connection_error(source))?
            else {
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
    /// Reads a log file of a container from an offset. Not retried: a caller that follows a log
    /// polls anyway.
    pub async fn container_log(
        &self,
        request: &ContainerRequestUuid,
        container: &ContainerUuid,
        file: &str,
        offset: u64,
    ) -> Result<LogRange, Error> {
        let file = utf8_percent_encode(file, ENCODED);
        let path = format!("{}{file}", root(request, container));
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
            // The whole file: the reply of servers for an empty one.
            _ => Some(0),
        };
        // Bytes at an unknown or later offset are useless.
        Ok(match begin.and_then(|begin| offset.checked_sub(begin)) {
            Some(skip) => LogRange::Data(LogStream {
                client: self.clone(),
                response,
                skip,
            }),
            None => LogRange::Unavailable,
        })
    }

    /// Lists the names of the log files of a container, without directories. `None` if the server
    /// does not have the call.
    pub async fn container_log_files(
        &self,
        request: &ContainerRequestUuid,
        container: &ContainerUuid,
    ) -> Result<Option<Vec<String>>, Error> {
        let call = Call::list_files(root(request, container));
        let body = match self.send_raw(&call).await {
            Ok(body) => body,
            Err(error) => return refusal(error).map(|_| None),
        };
        let unreadable =
            |detail: String| self.undecodable(call.label(), serde_json::Error::custom(detail));
        let text = String::from_utf8(body).map_err(|error| unreadable(error.to_string()))?;
        // Reply to a method that the server does not have.
        if !text.trim_start().starts_with('<') {
            return Ok(None);
        }
        let files = files(&text).map_err(|error| unreadable(error.to_string()))?;
        Ok(Some(files))
    }
}

fn root(request: &ContainerRequestUuid, container: &ContainerUuid) -> String {
    format!("container_requests/{request}/log/{container}/")
}

/// Result for an error response that is part of the call.
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

/// The files in a WebDAV listing (`multistatus`). A name that ends in `/` is a directory.
fn files(listing: &str) -> Result<Vec<String>, roxmltree::Error> {
    let document = roxmltree::Document::parse(listing)?;
    let responses = with_tag(document.root(), "response");
    let files = responses.filter(|node| with_tag(*node, "collection").next().is_none());
    let names = files.filter_map(|node| {
        let (_, name) = with_tag(node, "href")
            .next()?
            .text()?
            .trim()
            .rsplit_once('/')?;
        let name = percent_decode_str(name).decode_utf8().ok()?.into_owned();
        Some(name).filter(|name| !name.is_empty())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// The elements with this tag in an element.
fn with_tag<'a, 'input: 'a>(
    node: roxmltree::Node<'a, 'input>,
    tag: &str,
) -> impl Iterator<Item = roxmltree::Node<'a, 'input>> {
    node.descendants()
        .filter(move |node| node.tag_name().name() == tag)
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
        assert_eq!(files(listing).unwrap(), ["a b&c.txt", "stdout.txt"]);
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

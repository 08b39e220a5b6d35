//! Renders the reply to PROPFIND: a WebDAV multistatus document, in the form that Arvados Workbench
//! reads (prefix `D:`, directory first). In: the files. Out: the text.

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

/// One file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The path in the URL; that of a directory ends in `/`.
    pub href: String,
    pub name: &'a str,
    /// `None`: a directory.
    pub file: Option<FileMetadata>,
}

/// Properties of a file in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMetadata {
    pub size: u64,
    pub modified: Option<Timestamp>,
    pub content_type: &'static str,
}

/// Renders the whole document.
pub fn multistatus(entries: &[Entry<'_>]) -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">",
    );
    for entry in entries {
        text.push_str("<D:response><D:href>");
        text.push_str(&escaped(&entry.href));
        text.push_str("</D:href><D:propstat><D:prop><D:displayname>");
        text.push_str(&escaped(entry.name));
        text.push_str("</D:displayname>");
        match &entry.file {
            None => {
                text.push_str("<D:resourcetype><D:collection xmlns:D=\"DAV:\"/></D:resourcetype>");
            }
            Some(file) => {
                text.push_str("<D:resourcetype></D:resourcetype>");
                text.push_str(&format!(
                    "<D:getcontentlength>{}</D:getcontentlength><D:getcontenttype>{}</D:getcontenttype>",
                    file.size, file.content_type
                ));
                if let Some(time) = file.modified.and_then(http_date) {
                    text.push_str(&format!("<D:getlastmodified>{time}</D:getlastmodified>"));
                }
            }
        }
        text.push_str("</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>");
    }
    text.push_str("</D:multistatus>");
    text
}

/// The date format of HTTP headers.
pub fn http_date(time: Timestamp) -> Option<String> {
    DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&time)
        .ok()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_the_directory_first_and_escapes_what_is_not_text() {
        let entries = [
            Entry {
                href: "/a&b/".into(),
                name: "log",
                file: None,
            },
            Entry {
                href: "/a&b/stdout.txt".into(),
                name: "<stdout>",
                file: Some(FileMetadata {
                    size: 12,
                    modified: Some("2026-01-02T03:04:05Z".parse().unwrap()),
                    content_type: "text/plain",
                }),
            },
        ];
        let text = multistatus(&entries);
        for part in [
            "<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>/a&amp;b/</D:href>",
            "<D:displayname>&lt;stdout&gt;</D:displayname><D:resourcetype></D:resourcetype>",
            "<D:getcontentlength>12</D:getcontentlength>",
            "<D:getlastmodified>Fri, 02 Jan 2026 03:04:05 GMT</D:getlastmodified>",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(text.matches("<D:response>").count(), 2);
        assert_eq!(text.matches("<D:collection").count(), 1);
    }
}

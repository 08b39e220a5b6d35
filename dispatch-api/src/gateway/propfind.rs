//! Responses to PROPFIND: names, sizes and modification times of files.

use std::fmt::Write;

use arvados_client::manifest::{EntryKind, FileTree};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that get an escape: all that mean something in a URL or in XML.
const ESCAPED_CHARACTERS: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// How deep below the requested entry a header has it listed; `None` if it is not valid.
pub fn parse_depth(header: Option<&str>) -> Option<u32> {
    match header.map(str::trim) {
        Some("0") => Some(0),
        Some("1") => Some(1),
        None => Some(u32::MAX),
        Some(text) => text.eq_ignore_ascii_case("infinity").then_some(u32::MAX),
    }
}

/// The body of a 207 response for the entry at `path` of this `kind`. `modified` is an HTTP date.
pub fn multistatus(
    tree: &FileTree,
    prefix: &str,
    path: &str,
    kind: EntryKind,
    depth: u32,
    modified: &str,
) -> String {
    let mut list = Listing {
        tree,
        prefix,
        modified,
        xml: String::from(
            r#"<?xml version="1.0" encoding="UTF-8"?><D:multistatus xmlns:D="DAV:">"#,
        ),
    };
    list.add(path, kind, depth);
    list.xml + "</D:multistatus>"
}

struct Listing<'a> {
    tree: &'a FileTree,
    prefix: &'a str,
    modified: &'a str,
    xml: String,
}

impl Listing<'_> {
    fn add(&mut self, path: &str, kind: EntryKind, depth: u32) {
        self.add_one(path, kind);
        let Some(below) = depth.checked_sub(1) else {
            return;
        };
        for (name, kind) in self.tree.list(path).unwrap_or_default() {
            let path = match path {
                "" => name.to_owned(),
                path => format!("{path}/{name}"),
            };
            self.add(&path, kind, below);
        }
    }

    fn add_one(&mut self, path: &str, kind: EntryKind) {
        let name = path.rsplit('/').next().unwrap_or("");
        let name = name.replace('&', "&amp;").replace('<', "&lt;");
        // XML cannot represent control characters.
        let name = name.replace(char::is_control, "\u{fffd}");
        let path = utf8_percent_encode(path, ESCAPED_CHARACTERS);
        let (prefix, modified) = (self.prefix, self.modified);
        let (slash, type_and_size) = match kind {
            EntryKind::Directory => (
                "/",
                "<D:resourcetype><D:collection/></D:resourcetype>".into(),
            ),
            EntryKind::File { size } => (
                "",
                format!(
                    "<D:resourcetype/><D:getcontentlength>{size}</D:getcontentlength>\
                     <D:getlastmodified>{modified}</D:getlastmodified>"
                ),
            ),
        };
        let at = format!("{prefix}/{path}");
        let at = at.trim_end_matches('/');
        write!(
            self.xml,
            "<D:response><D:href>{at}{slash}</D:href><D:propstat><D:prop>\
             <D:displayname>{name}</D:displayname>{type_and_size}</D:prop>\
             <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
        )
        .expect("writing to a string cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::manifest::Manifest;

    use super::*;

    #[test]
    fn entries_are_listed_as_deep_as_wanted() {
        let text = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:a&b.txt\n\
                    ./sub/deep acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:c.txt\n";
        let tree = Manifest::parse(text).unwrap().tree();
        let hrefs = |depth| {
            let xml = multistatus(&tree, "/log", "", EntryKind::Directory, depth, "now");
            xml.split("<D:href>")
                .skip(1)
                .map(|rest| rest.split('<').next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(hrefs(0), ["/log/"]);
        assert_eq!(hrefs(1), ["/log/", "/log/a%26b.txt", "/log/sub/"]);
        assert_eq!(
            hrefs(u32::MAX),
            [
                "/log/",
                "/log/a%26b.txt",
                "/log/sub/",
                "/log/sub/deep/",
                "/log/sub/deep/c.txt"
            ]
        );
        let kind = EntryKind::File { size: 3 };
        let one = multistatus(&tree, "/log", "a&b.txt", kind, 1, "now");
        assert!(
            one.contains("<D:getcontentlength>3</D:getcontentlength>"),
            "{one}"
        );
        assert!(
            one.contains("<D:getlastmodified>now</D:getlastmodified>"),
            "{one}"
        );
    }
}

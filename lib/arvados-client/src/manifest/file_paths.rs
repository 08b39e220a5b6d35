//! The paths of the files in a manifest's text, for searches: without its blocks, and without the
//! memory that a parsed manifest takes.

use super::escape::unescape;
use super::path;

/// The path of each segment, from the root of the collection; a file of several segments comes
/// several times. What cannot be read is left out.
///
/// ```
/// use arvados_client::manifest::file_paths;
/// let text = "./a\\040b acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo\n";
/// assert_eq!(file_paths(text).collect::<Vec<_>>(), ["a b/foo"]);
/// ```
pub fn file_paths(text: &str) -> impl Iterator<Item = String> {
    text.lines().flat_map(|line| {
        let mut words = line.split(' ');
        let stream = words.next().unwrap_or_default();
        let dir = stream.trim_start_matches('.').trim_start_matches('/');
        words.filter_map(move |word| {
            let (_, rest) = word.split_once(':')?;
            let (_, name) = rest.split_once(':')?;
            // It marks an empty directory.
            if name == "." || name == "\\056" {
                return None;
            }
            let path = path::below(dir, name);
            unescape(&path).ok().map(|path| path.into_owned())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_whatever_the_text_is() {
        let block = "acbd18db4cc2f85cedef654fccc4a4d8+3";
        let rows: [(String, &[&str]); 6] = [
            (
                format!(". {block} 0:3:a\n./b/c {block} 0:1:d 1:2:e/f\n"),
                &["a", "b/c/d", "b/c/e/f"],
            ),
            (format!(". {block} 0:3:a\\072b\n"), &["a:b"]),
            (format!(". {block} 0:3:bad\\9 0:0:good"), &["good"]),
            (format!("./empty {block} 0:0:\\056\n"), &[]),
            (String::new(), &[]),
            ("no manifest: at all 1:2".to_owned(), &[]),
        ];
        for (text, paths) in rows {
            assert_eq!(file_paths(&text).collect::<Vec<_>>(), paths, "{text:?}");
        }
    }
}

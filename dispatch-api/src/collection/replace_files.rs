//! `replace_files` of a request that creates or updates a collection: a map from paths of the
//! collection to what takes their place. The source of the rules is Arvados' API documentation,
//! `collections`.
//!
//! All sources are read as they were before the request, so two files can change places.

use std::collections::BTreeMap;

use arvados_client::manifest::{Entry, FileTree, Manifest, ManifestBuilder, ManifestError};
use serde_json::Value;

use crate::container::image::is_pdh;
use crate::error::{ApiError, Result};

/// The root of a collection, as a target.
const ROOT: &str = "/";

/// What takes the place of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// Nothing: the target is removed.
    Nothing,
    /// A path of the collection as it is.
    Current(String),
    /// A path of the `manifest_text` in the same request.
    Given(String),
    /// A path of the collection with this portable data hash.
    Collection { pdh: String, path: String },
}

/// Targets with their sources. No target with a source is above another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacements {
    by_target: BTreeMap<String, Source>,
}

/// The collections from which files are taken.
#[derive(Debug, Default)]
pub struct Sources {
    /// The collection as it is; empty for a new one.
    pub current: FileTree,
    /// The `manifest_text` of the request.
    pub given: Option<FileTree>,
    /// Others by their portable data hash: those that [`Replacements::collections`] names.
    pub collections: BTreeMap<String, FileTree>,
}

impl Replacements {
    /// Reads the parameter; `None` without one, or if it is empty.
    pub fn parse(parameter: &Value) -> Result<Option<Replacements>> {
        let map = match parameter {
            Value::Null => return Ok(None),
            Value::Object(map) if map.is_empty() => return Ok(None),
            Value::Object(map) => map,
            _ => return Err(refused("it must be an object of targets and sources")),
        };
        let mut by_target = BTreeMap::new();
        for (target, source) in map {
            check_target(target)?;
            let source = source.as_str().and_then(Source::parse).ok_or_else(|| {
                refused(format!(
                    "the source of {target:?} must be \"\", or PLACE/PATH with a PLACE of \
                     \"current\", \"manifest_text\" or a portable data hash, not {source}"
                ))
            })?;
            by_target.insert(target.clone(), source);
        }
        let replacements = Replacements { by_target };
        replacements.check_nesting()?;
        Ok(Some(replacements))
    }

    /// A target with a source replaces all below it, so that nothing else can be placed there.
    fn check_nesting(&self) -> Result<()> {
        for target in self.by_target.keys() {
            let outer = above(target).find(|outer| {
                let source = self.by_target.get(*outer);
                source.is_some_and(|source| *source != Source::Nothing)
            });
            if let Some(outer) = outer {
                return Err(refused(format!(
                    "{target:?} is inside of {outer:?}, which is replaced as a whole"
                )));
            }
        }
        Ok(())
    }

    /// Whether a source is the `manifest_text` of the request.
    pub fn use_given(&self) -> bool {
        self.sources()
            .any(|source| matches!(source, Source::Given(_)))
    }

    /// Whether the result depends on what the collection contains now.
    pub fn use_current(&self) -> bool {
        !self.by_target.contains_key(ROOT)
            || self
                .sources()
                .any(|source| matches!(source, Source::Current(_)))
    }

    /// The portable data hashes of the collections that are sources.
    pub fn collections(&self) -> impl Iterator<Item = &str> {
        self.sources().filter_map(|source| match source {
            Source::Collection { pdh, .. } => Some(pdh.as_str()),
            _ => None,
        })
    }

    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.by_target.values()
    }

    /// The content of the collection after the replacements.
    pub fn apply(&self, sources: &Sources) -> Result<Manifest> {
        let mut builder = ManifestBuilder::new();
        self.keep_others(&sources.current, &mut builder)
            .map_err(refused)?;
        for (target, source) in &self.by_target {
            self.place(target, source, sources, &mut builder)?;
        }
        Ok(builder.build())
    }

    /// Adds what no target replaces. A directory stays if all in it is replaced by nothing.
    fn keep_others(
        &self,
        current: &FileTree,
        builder: &mut ManifestBuilder,
    ) -> std::result::Result<(), ManifestError> {
        for (path, extents) in current.files() {
            if !self.is_replaced(&path) {
                builder.add_file(&path, extents.iter().cloned())?;
            }
        }
        let parents = self
            .by_target
            .keys()
            .filter_map(|target| above(target).next());
        let emptied = parents.filter(|dir| current.lookup(dir) == Some(Entry::Directory));
        let emptied = emptied.map(|dir| dir.trim_start_matches('/'));
        for dir in current.directories().chain(emptied) {
            if !self.is_replaced(dir) {
                builder.add_directory(dir)?;
            }
        }
        Ok(())
    }

    /// Whether a path of the collection, without a leading slash, is a target or below one.
    fn is_replaced(&self, path: &str) -> bool {
        let path = format!("/{path}");
        let itself = std::iter::once(path.as_str());
        itself
            .chain(above(&path))
            .any(|path| self.by_target.contains_key(path))
    }

    fn place(
        &self,
        target: &str,
        source: &Source,
        sources: &Sources,
        builder: &mut ManifestBuilder,
    ) -> Result<()> {
        let (tree, path) = match source {
            Source::Nothing => return Ok(()),
            Source::Current(path) => (Some(&sources.current), path),
            Source::Given(path) => (sources.given.as_ref(), path),
            Source::Collection { pdh, path } => (sources.collections.get(pdh), path),
        };
        let missing = || refused(format!("the source of {target:?} does not exist"));
        let tree = tree.ok_or_else(missing)?;
        match tree.lookup(path).ok_or_else(missing)? {
            Entry::File(_) if target == ROOT => Err(refused(
                "a file cannot take the place of the whole collection",
            )),
            Entry::File(extents) => builder
                .add_file(target, extents.iter().cloned())
                .map(drop)
                .map_err(refused),
            Entry::Directory => {
                let subtree = tree.subtree(path).map_err(refused)?;
                let added = builder.add_directory(target);
                added
                    .and_then(|builder| builder.add_tree(target, &subtree))
                    .map(drop)
                    .map_err(refused)
            }
        }
    }
}

impl Source {
    fn parse(text: &str) -> Option<Source> {
        if text.is_empty() {
            return Some(Source::Nothing);
        }
        let (place, path) = text.split_once('/').unwrap_or((text, ""));
        let path = path.to_owned();
        match place {
            "current" => Some(Source::Current(path)),
            "manifest_text" => Some(Source::Given(path)),
            pdh if is_pdh(pdh) => Some(Source::Collection {
                pdh: pdh.to_owned(),
                path,
            }),
            _ => None,
        }
    }
}

/// The directories above a target, the nearest first, the root last.
fn above(target: &str) -> impl Iterator<Item = &str> {
    let parent = |path: &str| match path.rfind('/') {
        _ if path == ROOT => None,
        Some(0) => Some(1),
        end => end,
    };
    std::iter::successors(Some(target), move |path| {
        parent(path).map(|end| &path[..end])
    })
    .skip(1)
}

fn check_target(target: &str) -> Result<()> {
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    let is_clean = |path: &str| path.split('/').all(is_name);
    if target == ROOT || target.strip_prefix('/').is_some_and(is_clean) {
        return Ok(());
    }
    Err(refused(format!(
        "the target {target:?} must be an absolute path without \".\", \"..\" and a slash at its end"
    )))
}

fn refused(why: impl std::fmt::Display) -> ApiError {
    ApiError::BadRequest(format!("replace_files: {why}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PDH: &str = "83367e8913dcec0bf3fc25ed5a27eacb+49";
    const FOO: &str = "acbd18db4cc2f85cedef654fccc4a4d8+3";
    const BAR: &str = "37b51d194a7513e45b56f6524f2d51f2+3";

    fn tree(text: &str) -> FileTree {
        Manifest::parse(text).unwrap().tree()
    }

    /// The manifest after the replacements in a collection with `a`, `d/b` and `d/e/c`.
    fn replaced(parameter: Value) -> std::result::Result<String, String> {
        let current = format!(". {FOO} 0:3:a\n./d {BAR} 0:3:b\n./d/e {FOO} 0:3:c\n");
        let sources = Sources {
            current: tree(&current),
            given: Some(tree(&format!("./new {BAR} 0:3:n\n"))),
            collections: [(PDH.to_owned(), tree(&format!(". {FOO} 0:3:foo.txt\n")))].into(),
        };
        let replacements = Replacements::parse(&parameter).map_err(|error| error.to_string())?;
        let manifest = replacements.expect("replacements").apply(&sources);
        manifest
            .map(|manifest| manifest.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn targets_get_what_their_sources_were() {
        let empty = "d41d8cd98f00b204e9800998ecf8427e+0";
        let pdh = |path: &str| format!("{PDH}{path}");
        let (a, d, e) = (
            format!(". {FOO} 0:3:a\n"),
            format!("./d {BAR} 0:3:b\n"),
            format!("./d/e {FOO} 0:3:c\n"),
        );
        for (parameter, expected) in [
            // Removed: a file, a directory, the last file of a directory, what is not there.
            (json!({"/a": ""}), format!("{d}{e}")),
            (json!({"/d": ""}), a.clone()),
            (
                json!({"/d/e/c": ""}),
                format!("{a}{d}./d/e {empty} 0:0:\\056\n"),
            ),
            (json!({"/x": ""}), format!("{a}{d}{e}")),
            (json!({"/": ""}), String::new()),
            // A new file, one in new directories, one over a directory.
            (
                json!({"/x": pdh("/foo.txt"), "/a": ""}),
                format!(". {FOO} 0:3:x\n{d}{e}"),
            ),
            (
                json!({"/n/m/x": pdh("/foo.txt")}),
                format!("{a}{d}{e}./n/m {FOO} 0:3:x\n"),
            ),
            (
                json!({"/d": pdh("/foo.txt")}),
                format!(". {FOO} 0:3:a 0:3:d\n"),
            ),
            // A whole collection, at the root and below it.
            (json!({"/": pdh("")}), format!(". {FOO} 0:3:foo.txt\n")),
            (json!({"/": pdh("/")}), format!(". {FOO} 0:3:foo.txt\n")),
            (
                json!({"/d": pdh("/")}),
                format!("{a}./d {FOO} 0:3:foo.txt\n"),
            ),
            (
                json!({"/": "manifest_text/"}),
                format!("./new {BAR} 0:3:n\n"),
            ),
            (
                json!({"/": "", "/d": "manifest_text/new"}),
                format!("./d {BAR} 0:3:n\n"),
            ),
            // Renamed, exchanged, and a directory that gets a new content.
            (
                json!({"/d/z": "current/a", "/a": ""}),
                format!("./d {BAR} 0:3:b {FOO} 0:3:z\n{e}").replace(
                    &format!(" 0:3:b {FOO} 0:3:z"),
                    &format!(" {FOO} 0:3:b 3:3:z"),
                ),
            ),
            (
                json!({"/a": "current/d/b", "/d/b": "current/a"}),
                format!(". {BAR} 0:3:a\n./d {FOO} 0:3:b\n{e}"),
            ),
            (
                json!({"/d": "", "/d/only": "current/d/e/c"}),
                format!("{a}./d {FOO} 0:3:only\n"),
            ),
            (json!({"/": "current/d/e"}), format!(". {FOO} 0:3:c\n")),
        ] {
            let what = parameter.to_string();
            assert_eq!(replaced(parameter), Ok(expected), "{what}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_name() {
        for (parameter, words) in [
            (json!([]), "must be an object"),
            (json!({"a": ""}), "\"a\" must be an absolute path"),
            (json!({"/a/": ""}), "must be an absolute path"),
            (json!({"/a/../b": ""}), "must be an absolute path"),
            (json!({"//": ""}), "must be an absolute path"),
            (json!({"/a": 1}), "the source of \"/a\" must be"),
            (json!({"/a": "other/b"}), "the source of \"/a\" must be"),
            (
                json!({"/a": "current/x"}),
                "the source of \"/a\" does not exist",
            ),
            (json!({"/x": "current/../a"}), "does not exist"),
            (json!({"/": "current/a"}), "the whole collection"),
            (
                json!({"/d": "current/a", "/d/b": ""}),
                "\"/d/b\" is inside of \"/d\"",
            ),
            (
                json!({"/": "current/d", "/a": ""}),
                "\"/a\" is inside of \"/\"",
            ),
            (json!({"/a/x": "current/d/b"}), "replace_files: "),
        ] {
            let what = parameter.to_string();
            let refusal = replaced(parameter).unwrap_err();
            assert!(refusal.contains(words), "{what}: {refusal}");
        }
        assert_eq!(Replacements::parse(&json!({})).unwrap(), None);
        assert_eq!(Replacements::parse(&Value::Null).unwrap(), None);
    }

    #[test]
    fn the_collections_that_must_be_read_are_known() {
        let parsed = |parameter| Replacements::parse(&parameter).unwrap().unwrap();
        let one = parsed(json!({"/": format!("{PDH}/x")}));
        assert_eq!(one.collections().collect::<Vec<_>>(), [PDH]);
        assert!(!one.use_current() && !one.use_given());
        assert!(parsed(json!({"/a": ""})).use_current());
        assert!(parsed(json!({"/": "current/a"})).use_current());
        assert!(parsed(json!({"/": "manifest_text/"})).use_given());
    }
}

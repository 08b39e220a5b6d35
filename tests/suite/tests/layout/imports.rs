//! Rules about imports: no files import each other in a circle, and the pure modules of
//! dispatch-core stay pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use suite_tests::source_files;

use crate::all_sources;

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut crates = BTreeSet::new();
    for (path, _) in all_sources() {
        let mut folders = path.ancestors();
        if let Some(src) = folders.find(|dir| dir.file_name().is_some_and(|name| name == "src")) {
            crates.insert(src.to_owned());
        }
    }
    assert!(crates.len() > 12, "{crates:?}");
    let circles: Vec<String> = crates.iter().flat_map(|src| circles_of(src)).collect();
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// The modules of one crate, by path below `crate`; the root is the empty path.
struct Modules {
    texts: BTreeMap<Vec<String>, String>,
    /// The names that a module reexports: its path and the name, and the module that has the item.
    reexports: BTreeMap<(Vec<String>, String), Vec<String>>,
}

fn circles_of(src: &Path) -> Vec<String> {
    let mut texts = BTreeMap::new();
    for file in source_files(src) {
        let relative = file.strip_prefix(src).unwrap().with_extension("");
        let mut path: Vec<String> = relative
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        let last = path.last().unwrap().as_str();
        // Tests may use what they like, and a program's own root is no part of its library.
        if path
            .iter()
            .any(|part| part.ends_with("tests") || part == "bin")
        {
            continue;
        }
        if last == "mod" || (path.len() == 1 && matches!(last, "lib" | "main")) {
            path.pop();
        }
        let text = without_comments_and_tests(&fs::read_to_string(&file).unwrap());
        texts
            .entry(path)
            .or_insert_with(String::new)
            .push_str(&text);
    }
    let modules = Modules::new(texts);
    let edges = modules.edges();
    let name = src.parent().unwrap().file_name().unwrap().to_string_lossy();
    strongly_connected(&edges)
        .into_iter()
        .map(|circle| {
            let files: Vec<String> = circle.iter().map(|path| path.join("::")).collect();
            format!("{name}: {}", files.join(" ↔ "))
        })
        .collect()
}

fn without_comments_and_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let lines: Vec<&str> = code.lines().filter(is_code).collect();
    lines.join("\n")
}

impl Modules {
    fn new(texts: BTreeMap<Vec<String>, String>) -> Self {
        let mut modules = Self {
            texts,
            reexports: BTreeMap::new(),
        };
        let mut found = Vec::new();
        for (path, text) in &modules.texts {
            for part in text.split("\npub").skip(1) {
                // `pub use`, `pub(crate) use`, `pub(super) use`
                let Some((visibility, rest)) = part.split_once("use ") else {
                    continue;
                };
                if visibility.trim().contains([' ', '\n']) || visibility.contains("fn") {
                    continue;
                }
                let tree = rest.split(';').next().unwrap();
                for names in expanded(tree) {
                    let owner = modules.resolved(path, &names);
                    if let (Some(owner), Some(name)) = (owner, names.last()) {
                        found.push(((path.clone(), name.clone()), owner));
                    }
                }
            }
        }
        modules.reexports.extend(found);
        modules
    }

    /// The module that has the item of this path as `from` writes it. `None` for other crates and
    /// for plain names.
    fn resolved(&self, from: &[String], names: &[String]) -> Option<Vec<String>> {
        let mut at: Vec<String> = match names.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            first => {
                let mut child = from.to_vec();
                child.push(first.to_owned());
                self.texts.contains_key(&child).then_some(child)?
            }
        };
        for name in &names[1..] {
            if name == "super" {
                at.pop()?;
                continue;
            }
            let mut child = at.clone();
            child.push(name.clone());
            if self.texts.contains_key(&child) {
                at = child;
            } else if let Some(owner) = self.reexports.get(&(at.clone(), name.clone())) {
                return Some(owner.clone());
            } else {
                break;
            }
        }
        Some(at)
    }

    /// Which module uses which other. A module and those that contain it do not count.
    fn edges(&self) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
        let mut edges: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
        for (from, text) in &self.texts {
            let targets = edges.entry(from.clone()).or_default();
            for root in ["crate::", "super::"] {
                for (start, _) in text.match_indices(root) {
                    let is_inner = text[..start].ends_with([':', '$']);
                    if is_inner {
                        continue;
                    }
                    for names in expanded(path_at(&text[start..])) {
                        let Some(to) = self.resolved(from, &names) else {
                            continue;
                        };
                        if !to.starts_with(from) && !from.starts_with(&to) {
                            targets.insert(to);
                        }
                    }
                }
            }
        }
        edges
    }
}

/// The path or the `use` tree that `text` begins with.
fn path_at(text: &str) -> &str {
    let mut depth = 0_u32;
    for (index, c) in text.char_indices() {
        match c {
            '{' if text[..index].ends_with("::") || depth > 0 => depth += 1,
            '}' if depth > 0 => depth -= 1,
            _ if depth > 0 => {}
            c if c.is_alphanumeric() || "_:".contains(c) => {}
            _ => return &text[..index],
        }
        if depth == 0 && c == '}' {
            return &text[..=index];
        }
    }
    text
}

/// The paths of a `use` tree: `a::{b, c::d as e}` is `a::b` and `a::c::d`.
fn expanded(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap();
        let names = path.split("::").map(str::trim);
        return vec![
            names
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
        ];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for c in inner.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(c);
    }
    let outer = expanded(prefix).remove(0);
    let mut paths = Vec::new();
    for part in parts.iter().filter(|part| !part.trim().is_empty()) {
        for names in expanded(part) {
            let names = names.into_iter().filter(|name| name != "self");
            paths.push(outer.iter().cloned().chain(names).collect());
        }
    }
    paths
}

/// Groups of more than one node that all reach each other.
fn strongly_connected(
    edges: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
) -> Vec<Vec<Vec<String>>> {
    let reached: BTreeMap<_, BTreeSet<_>> = edges
        .keys()
        .map(|start| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(node) = open.pop() {
                for next in edges.get(node).into_iter().flatten() {
                    if seen.insert(next) {
                        open.push(next);
                    }
                }
            }
            (start, seen)
        })
        .collect();
    let mut groups = Vec::new();
    let mut grouped = BTreeSet::new();
    for (node, reaches) in &reached {
        if grouped.contains(node) || !reaches.contains(node) {
            continue;
        }
        let circle: Vec<Vec<String>> = reaches
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|back| back.contains(node)))
            .map(|other| (*other).clone())
            .collect();
        grouped.extend(reached.keys().filter(|key| circle.contains(key)).copied());
        groups.push(circle);
    }
    groups
}

#[test]
fn a_circle_is_found_also_through_a_reexport() {
    let module = |path: &str, text: &str| {
        let path = path.split("::").filter(|part| !part.is_empty());
        (path.map(str::to_owned).collect(), format!("\n{text}"))
    };
    let circles = |texts: &[(&str, &str)]| {
        let texts = texts.iter().map(|(path, text)| module(path, text));
        strongly_connected(&Modules::new(texts.collect()).edges())
    };
    let tree = [
        ("", "mod a; mod c;"),
        ("a", "pub use b::{X, Y};"),
        ("a::b", "use crate::c::Z;"),
        ("c", "struct Z;"),
    ];
    assert!(circles(&tree).is_empty());
    let mut circle = tree;
    circle[3].1 = "use crate::{a::Y, d};";
    let found = circles(&circle);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].len(), 2, "{found:?}");
}

/// The pure modules of dispatch-core, each with the top-level modules that it may use.
const PURE_MODULES: [(&str, &[&str]); 3] = [
    ("model", &["model"]),
    ("plan", &["model", "plan"]),
    ("reconcile", &["model", "plan", "reconcile", "config"]),
];
/// What has no place in a pure module: async code, I/O and clocks.
const IMPURE: [&str; 9] = [
    "tokio",
    "futures",
    "async ",
    ".await",
    "std::fs",
    "std::net",
    "std::process",
    "Instant::now",
    "SystemTime",
];

/// What makes `text`, a file of the pure module `module`, impure.
fn impurities(module: &str, text: &str) -> Vec<String> {
    let code = without_comments_and_tests(text);
    let (_, allowed) = PURE_MODULES
        .iter()
        .find(|(name, _)| *name == module)
        .unwrap();
    let paths = code
        .match_indices("crate::")
        .flat_map(|(start, _)| expanded(path_at(&code[start..])));
    let foreign = paths.filter(|path| {
        !path
            .get(1)
            .is_some_and(|used| allowed.contains(&used.as_str()))
    });
    let impure = IMPURE.iter().filter(|word| code.contains(*word));
    foreign
        .map(|path| path.join("::"))
        .chain(impure.map(|word| (*word).to_owned()))
        .collect()
}

#[test]
fn pure_modules_use_no_module_that_does_io() {
    let src = suite_tests::workspace().join("dispatch-core/src");
    let mut problems = Vec::new();
    for (module, _) in PURE_MODULES {
        let mut files = source_files(&src.join(module));
        let is_test = |file: &PathBuf| {
            let mut parts = file.strip_prefix(&src).unwrap().iter();
            parts.any(|part| matches!(part.to_str(), Some("tests" | "tests.rs")))
        };
        files.retain(|file| !is_test(file));
        assert!(files.len() > 1, "{module}: {files:?}");
        for file in files {
            let found = impurities(module, &fs::read_to_string(&file).unwrap());
            let name = file.strip_prefix(&src).unwrap().display().to_string();
            problems.extend(
                found
                    .into_iter()
                    .map(|found| format!("{name} uses {found}")),
            );
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn an_impure_use_is_found() {
    let rows = [
        (
            "reconcile",
            "use crate::model::task::Task;\nuse crate::plan::{Action, plan};",
            None,
        ),
        (
            "reconcile",
            "use crate::act::Task;",
            Some("crate::act::Task"),
        ),
        (
            "plan",
            "use crate::{\n    model::world::World,\n    reconcile::Reconciler,\n};",
            Some("crate::reconcile::Reconciler"),
        ),
        (
            "model",
            "fn now() -> crate::scheduler::Scheduler {}",
            Some("crate::scheduler::Scheduler"),
        ),
        ("model", "use tokio::time::Instant;", Some("tokio")),
        ("plan", "async fn plan() {}", Some("async ")),
        ("plan", "// use crate::act::Task;", None),
        (
            "plan",
            "#[cfg(test)]\nmod tests {\n    use crate::act::Task;\n}",
            None,
        ),
    ];
    for (module, text, expected) in rows {
        let found = impurities(module, text);
        assert_eq!(
            found.first().map(String::as_str),
            expected,
            "{module}: {text}"
        );
    }
}

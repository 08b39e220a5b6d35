//! The documents name tests; those exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// The `module::name`s in backquotes.
fn named(text: &str) -> BTreeSet<&str> {
    let is_test = |word: &&str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
        word.contains("::") && word.chars().all(plain)
    };
    text.split('`').skip(1).step_by(2).filter(is_test).collect()
}

/// The plan's table in the code and the one in the map of the project are the same.
#[test]
fn the_table_of_the_plan_is_in_the_architecture() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let code = std::fs::read_to_string(root.join("dispatch-core/src/plan.rs")).unwrap();
    let map = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let rows: Vec<&str> = code
        .lines()
        .filter_map(|line| line.strip_prefix("//! "))
        .filter(|line| line.starts_with('|'))
        .collect();
    assert!(rows.len() > 15, "{rows:?}");
    assert!(map.contains(&rows.join("\n")), "they differ");
}

#[test]
fn every_test_named_in_the_documents_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    sources(root, &mut files);
    let without_blanks = |path: &PathBuf| {
        let mut text = std::fs::read_to_string(path).unwrap();
        text.retain(|c| !c.is_whitespace());
        text
    };
    let code: Vec<String> = files.iter().map(without_blanks).collect();
    let text = std::fs::read_to_string(root.join("docs/reliability.md")).unwrap();
    let tests = named(&text);
    assert!(tests.len() > 70, "only {} tests are named", tests.len());
    for test in tests {
        let name = test.rsplit("::").next().unwrap();
        // A function, or one row of those that are played on several schedulers.
        let forms = [
            format!("fn{name}("),
            format!("everywhere!({name},"),
            format!("everywhere!(both,{name},"),
            format!("everywhere!(all,{name},"),
            format!("on_slurm!({name},"),
            format!("mod{name}{{"),
        ];
        let is_there = |code: &String| forms.iter().any(|form| code.contains(form));
        assert!(
            code.iter().any(is_there),
            "{test} is named in docs/reliability.md and does not exist"
        );
    }
}

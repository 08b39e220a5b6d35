//! Rules about source files that no compiler checks: their size, their first line, the width of
//! their comments, and what they import.

mod imports;

use std::fs;
use std::path::PathBuf;

/// Maximum number of lines of a file.
const MAX_LINES: usize = 500;
/// Maximum of the median number of lines.
const MAX_MEDIAN_LINES: usize = 170;
/// Maximum width of a comment line. Rows of tables may be wider.
const MAX_COMMENT_COLUMNS: usize = 100;

fn all_sources() -> Vec<(PathBuf, String)> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text)
    };
    suite_tests::source_files(suite_tests::workspace())
        .into_iter()
        .map(read)
        .collect()
}

#[test]
fn files_are_short_and_say_first_what_they_are() {
    let files = all_sources();
    let mut lines: Vec<usize> = files.iter().map(|(_, text)| text.lines().count()).collect();
    lines.sort_unstable();
    assert!(lines.len() > 500, "only {} files were found", lines.len());
    let median = lines[lines.len() / 2];
    assert!(median <= MAX_MEDIAN_LINES, "the median is {median} lines");
    let problem = |(path, text): &(PathBuf, String)| {
        let (path, count) = (path.display(), text.lines().count());
        let first = text.lines().next().unwrap_or_default();
        match first.starts_with("//! ") && first.len() > 20 {
            _ if count > MAX_LINES => Some(format!("{path} has {count} lines")),
            false => Some(format!("{path} does not say in its first line what it is")),
            true => None,
        }
    };
    let problems: Vec<String> = files.iter().filter_map(problem).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn comments_fit_into_100_columns() {
    let mut problems = Vec::new();
    for (path, text) in all_sources() {
        for (index, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            let is_table = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
            let is_wide = line.chars().count() > MAX_COMMENT_COLUMNS;
            if comment.starts_with("//") && is_wide && !is_table {
                problems.push(format!("{}:{}", path.display(), index + 1));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The table of docs/security.md is no better than the tests that it names.
#[test]
fn the_tests_in_the_table_of_assets_exist() {
    let document = suite_tests::workspace().join("docs/security.md");
    let document = fs::read_to_string(document).unwrap();
    let (_, table) = document.split_once("## What is protected").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let words = table.split('`').skip(1).step_by(2);
    let named: Vec<String> = words.map(|name| format!("fn {name}(")).collect();
    assert!(named.len() > 20, "{named:?}");
    let sources = all_sources();
    let is_there = |name: &&String| sources.iter().any(|(_, text)| text.contains(*name));
    let missing: Vec<&String> = named.iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

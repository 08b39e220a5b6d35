//! A command that succeeded with an empty output may have written its results elsewhere in its
//! container, where they are lost. The person is told where.

use container_engine::{Container, ExitStatus};

use super::context::Attempt;
use super::locked_phase::Running;
use super::runtime_status::Status;
use crate::verdict::Ending;

/// Maximum number of files that are named.
const MAX_NAMED: usize = 5;
/// Maximum length of the path of one that is named, in bytes.
const MAX_NAME: usize = 200;
/// Directories with files that are no results.
const NO_RESULTS: [&str; 9] = [
    "/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/usr", "/var", "/lib",
];

impl Attempt<'_> {
    /// Warns of files outside of an output that is empty.
    pub(super) async fn warn_of_files_outside(
        &self,
        running: &Running,
        ending: &Ending,
        output_path: &str,
        status: &Status,
    ) {
        let Ending::Exited(exit) = ending else { return };
        let output = &running.fetched.staged.output_dir;
        if exit.status != ExitStatus::Code(0) {
            return;
        }
        let Ok(mut entries) = tokio::fs::read_dir(output).await else {
            return;
        };
        if !matches!(entries.next_entry().await, Ok(None)) {
            return;
        }
        let container: &dyn Container = &*running.container;
        let files = container.files_in_root(may_be_result, MAX_NAMED).await;
        if let Some(sentence) = sentence(&files, output_path) {
            self.warn(status, sentence);
        }
    }
}

/// Whether a file may be a result: no temporary file, no cache, no part of a package. Names that
/// make no line of a log are left out.
fn may_be_result(path: &str) -> bool {
    if path.len() > MAX_NAME || path.contains(char::is_control) {
        return false;
    }
    let is_below = |dir: &str| {
        path.strip_prefix(dir)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    let is_hidden = |name: &str| name.starts_with('.') || name == "__pycache__";
    !NO_RESULTS.iter().any(|dir| is_below(dir)) && !path.split('/').any(is_hidden)
}

fn sentence(files: &[String], output_path: &str) -> Option<String> {
    if files.is_empty() {
        return None;
    }
    let more = if files.len() == MAX_NAMED {
        ", …"
    } else {
        ""
    };
    Some(format!(
        "its output is empty, because it wrote nothing below {output_path}; lost with the container: {}{more}",
        files.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_caches_and_packages_are_no_results() {
        for (path, expected) in [
            ("/result.txt", true),
            ("/data/out/x", true),
            ("/root/out.csv", true),
            ("/tmpfile", true),
            ("/tmp/x", false),
            ("/var/log/x", false),
            ("/usr/lib/python3/x.py", false),
            ("/root/.cache/pip/x", false),
            ("/app/__pycache__/x.pyc", false),
            ("/result\nComplete", false),
            (&format!("/{}", "x".repeat(200)), false),
        ] {
            assert_eq!(may_be_result(path), expected, "{path}");
        }
    }

    #[test]
    fn the_files_are_named_up_to_a_number() {
        assert_eq!(sentence(&[], "/out"), None);
        let files: Vec<String> = (1..=5).map(|n| format!("/{n}")).collect();
        let (one, five) = (sentence(&files[..1], "/out"), sentence(&files, "/out"));
        assert!(
            one.unwrap()
                .ends_with("below /out; lost with the container: /1")
        );
        assert!(five.unwrap().ends_with("/4, /5, …"));
    }
}

//! `output_glob`: a line is a pattern and the next one a path. Nothing panics, and no wanted path
//! lies below a directory that is skipped.

use crunch_run::output::Globs;

/// Checks the rules with this input.
pub fn check(text: &str) {
    let Some((pattern, path)) = text.split_once('\n') else {
        return;
    };
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
        return;
    }
    let (globs, _) = Globs::new(&[pattern.to_owned()]);
    if globs.wants_file(path) || globs.wants_directory(path) {
        for above in 1..parts.len() {
            let above = parts[..above].join("/");
            assert!(
                globs.could_want_below(&above),
                "{pattern:?} {path:?}: {above:?}"
            );
        }
    }
}

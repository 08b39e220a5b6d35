//! Programs that a test makes for others to run.

use std::fs;
use std::path::Path;
use std::process::Command;

/// By another process: what this one writes nobody may be able to execute, while another thread starts something.
pub fn write(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).unwrap();
    let install = ["-m".as_ref(), "755".as_ref(), draft.as_path(), path];
    assert!(
        Command::new("install")
            .args(install)
            .status()
            .unwrap()
            .success()
    );
    fs::remove_file(draft).unwrap();
}

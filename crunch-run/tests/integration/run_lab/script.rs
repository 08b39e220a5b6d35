//! Scripts for other processes to run.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Another process writes the script: a file that this process writes may be busy ("text file
/// busy") while another thread forks.
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

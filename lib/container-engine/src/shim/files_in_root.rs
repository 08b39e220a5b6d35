//! Finds the files that a command left in the writable layer of its container's root. These end
//! with the container.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of entries that are looked at.
const MAX_ENTRIES: usize = 20_000;

/// Paths in the container of at most `limit` regular files with content, for which `wanted` is
/// true. Mount points that were made for the container are empty files.
pub fn find(layers: &[PathBuf], wanted: fn(&str) -> bool, limit: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = MAX_ENTRIES;
    for layer in layers {
        let mut dirs = vec![layer.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if left == 0 || found.len() == limit {
                    return found;
                }
                left -= 1;
                let Ok(facts) = entry.metadata() else {
                    continue;
                };
                if facts.is_dir() {
                    dirs.push(entry.path());
                } else if facts.is_file() && facts.len() > 0 {
                    found.extend(
                        path_in_container(layer, &entry.path()).filter(|path| wanted(path)),
                    );
                }
            }
        }
    }
    found
}

fn path_in_container(layer: &Path, path: &Path) -> Option<String> {
    let path = path.strip_prefix(layer).ok()?;
    Some(format!("/{}", path.to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_content_are_found_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        fs::create_dir_all(upper.join("a/b")).unwrap();
        for (name, content) in [("a/b/x", "1"), ("a/empty", ""), ("y", "1"), ("tmp", "1")] {
            fs::write(upper.join(name), content).unwrap();
        }
        std::os::unix::fs::symlink("/etc", upper.join("link")).unwrap();
        let layers = [upper, dir.path().join("none")];
        let wanted = |path: &str| path != "/tmp";
        let mut found = find(&layers, wanted, 10);
        found.sort();
        assert_eq!(found, ["/a/b/x", "/y"]);
        assert_eq!(find(&layers, wanted, 1).len(), 1);
    }
}

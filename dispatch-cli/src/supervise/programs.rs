//! Finds the other programs of the suite.

use std::path::{Path, PathBuf};

use super::UpError;

/// Looks in the directory of this program first, so that installations are not mixed, then in PATH.
pub fn find(name: &str) -> Result<PathBuf, UpError> {
    let own = std::env::current_exe().ok();
    let own = own.as_deref().and_then(Path::parent);
    find_in(name, own).ok_or_else(|| UpError::NoProgram(name.to_owned()))
}

fn find_in(name: &str, own: Option<&Path>) -> Option<PathBuf> {
    let beside = own.and_then(|dir| which::which_in(name, Some(dir), dir).ok());
    beside.or_else(|| which::which(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_beside_us_comes_before_one_on_path() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            find_in("sh", Some(dir.path())).is_some(),
            "there is one on PATH"
        );
        let ours = dir.path().join("sh");
        std::fs::write(&ours, "").unwrap();
        assert_ne!(
            find_in("sh", Some(dir.path())).as_ref(),
            Some(&ours),
            "not executable"
        );
        std::fs::set_permissions(&ours, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in("sh", Some(dir.path())), Some(ours));
        assert_eq!(find_in("no-such-program-anywhere", Some(dir.path())), None);
    }
}

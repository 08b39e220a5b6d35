//! The certificates that `dispatch up` gives to other programs: those of the system, and that of
//! its server. With the server's alone, no other HTTPS client of the same shell would work.

use std::fs;
use std::path::{Path, PathBuf};

use arvados_client::tls::SYSTEM_BUNDLES;

use crate::error::CliError;
use crate::state_dir::StateDir;

/// The file in the state directory.
const BUNDLE_FILE: &str = "ca-certificates.pem";

/// Writes the bundle with this certificate. Returns its path. `named` is `SSL_CERT_FILE`, which
/// replaces the certificates of the system.
pub fn write(
    state: &StateDir,
    certificate: &Path,
    named: Option<PathBuf>,
) -> Result<PathBuf, CliError> {
    let path = state.join(BUNDLE_FILE);
    let mut bundle = fs::read(certificate).map_err(CliError::read(certificate))?;
    // A shell with the environment of an earlier start names this bundle itself.
    let named = named.filter(|named| *named != path);
    let usual = SYSTEM_BUNDLES.iter().map(PathBuf::from);
    let mut files = named.into_iter().chain(usual);
    if let Some(system) = files.find_map(|file| fs::read(file).ok()) {
        bundle.push(b'\n');
        bundle.extend(system);
    }
    state.write(BUNDLE_FILE, bundle)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificates_of_the_system_or_the_named_ones_are_added() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::locate(Some(dir.path())).unwrap();
        let (own, named) = (dir.path().join("own"), dir.path().join("named"));
        fs::write(&own, "OWN\n").unwrap();
        fs::write(&named, "NAMED\n").unwrap();
        let bundle = |named: Option<&Path>| {
            let path = write(&state, &own, named.map(Path::to_owned)).unwrap();
            (fs::read_to_string(&path).unwrap(), path)
        };
        let (text, path) = bundle(Some(&named));
        assert_eq!(text, "OWN\n\nNAMED\n");
        let (of_system, _) = bundle(None);
        assert!(of_system.starts_with("OWN\n") && !of_system.contains("NAMED"));
        // Its own file, or one that is not there, counts as none.
        assert_eq!(bundle(Some(&path)).0, of_system);
        assert_eq!(bundle(Some(Path::new(""))).0, of_system);
    }
}

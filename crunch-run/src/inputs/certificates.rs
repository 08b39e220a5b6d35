//! Finds the CA certificates for a container with API access.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use arvados_client::tls::SYSTEM_BUNDLES;

/// Path of the certificates in the container.
pub const TARGET: &str = "/etc/arvados/ca-certificates.crt";

/// Returns the file named in `SSL_CERT_FILE`, or the first usual one that exists.
pub fn find(named: Option<&OsStr>, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let named = named.filter(|name| !name.is_empty()).map(Path::new);
    let usual = SYSTEM_BUNDLES.iter().map(Path::new);
    let mut candidates = named.into_iter().chain(usual);
    candidates.find(|path| exists(path)).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_file_comes_first_if_it_exists() {
        let own = Some(OsStr::new("/own.crt"));
        let cases: [(_, &[&str], _); 5] = [
            (own, &["/own.crt", "/etc/ssl/cert.pem"], Some("/own.crt")),
            (own, &["/etc/ssl/cert.pem"], Some("/etc/ssl/cert.pem")),
            (
                Some(OsStr::new("")),
                &["/etc/ssl/cert.pem"],
                Some("/etc/ssl/cert.pem"),
            ),
            (
                None,
                &["/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem"],
                Some("/etc/ssl/ca-bundle.pem"),
            ),
            (own, &[], None),
        ];
        for (named, there, expected) in cases {
            let found = find(named, |path| there.iter().any(|p| Path::new(p) == path));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{there:?}");
        }
    }
}

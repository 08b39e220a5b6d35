//! The certificates a container with API access needs to trust its server.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where a container with API access looks for them.
pub const TARGET: &str = "/etc/arvados/ca-certificates.crt";

/// Where distributions keep theirs, the commonest first.
const USUAL_PLACES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The file named in `SSL_CERT_FILE`, or the first usual one that exists.
pub fn find(named: Option<&OsStr>, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let named = named.filter(|name| !name.is_empty()).map(Path::new);
    let usual = USUAL_PLACES.iter().map(Path::new);
    let mut places = named.into_iter().chain(usual);
    places.find(|path| exists(path)).map(Path::to_owned)
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

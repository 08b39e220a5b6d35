//! The server's certificate: a given one, or one it makes for itself once.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::ParsedCertificate;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::state_dir::{StateDir, StateError};

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read {what} {path}: {why}")]
    Unreadable {
        what: &'static str,
        path: String,
        why: String,
    },
    #[error("the certificate {certificate} and the key {key} cannot be used together: {why}")]
    Mismatch {
        certificate: String,
        key: String,
        why: String,
    },
    #[error("cannot make a certificate: {0}")]
    Make(String),
    #[error(transparent)]
    State(#[from] StateError),
}

/// Where the two halves are.
#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The files in the state directory, made at the first start.
pub fn own(state: &StateDir, listen: IpAddr) -> Result<Files, CertificateError> {
    let files = Files {
        certificate: state.path.join("certificate.pem"),
        key: state.path.join("certificate.key"),
    };
    if files.certificate.exists() && files.key.exists() {
        return Ok(files);
    }
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".into(), "::1".into()];
    names.extend(host_name().ok());
    let address = listen.to_string();
    if !listen.is_unspecified() && !names.contains(&address) {
        names.push(address);
    }
    let made = rcgen::generate_simple_self_signed(names)
        .map_err(|problem| CertificateError::Make(problem.to_string()))?;
    state.write_private("certificate.key", &made.signing_key.serialize_pem())?;
    state.write_private("certificate.pem", &made.cert.pem())?;
    Ok(files)
}

/// Whether a client that connects to this address would take the certificate; it does where that cannot be told.
pub fn is_for(files: &Files, address: IpAddr) -> bool {
    let Ok(certificate) = CertificateDer::from_pem_file(&files.certificate) else {
        return true;
    };
    let Ok(parsed) = ParsedCertificate::try_from(&certificate) else {
        return true;
    };
    let name = ServerName::IpAddress(address.into());
    rustls::client::verify_server_name(&parsed, &name).is_ok()
}

fn host_name() -> io::Result<String> {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    if name.is_empty() || name == "localhost" {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(name)
}

pub fn server_config(files: &Files) -> Result<Arc<ServerConfig>, CertificateError> {
    let unreadable = |what: &'static str, path: &Path, why: String| CertificateError::Unreadable {
        what,
        path: path.display().to_string(),
        why,
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(|why| unreadable("the certificate", &files.certificate, why.to_string()))?;
    if chain.is_empty() {
        let why = "there is no certificate in it".to_owned();
        return Err(unreadable("the certificate", &files.certificate, why));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|why| unreadable("the key", &files.key, why.to_string()))?;
    let mismatch = |why: rustls::Error| CertificateError::Mismatch {
        certificate: files.certificate.display().to_string(),
        key: files.key.display().to_string(),
        why: why.to_string(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(mismatch)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(mismatch)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_an_earlier_start_may_be_for_another_address() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), None).unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let local = own(&state, address("127.0.0.1")).unwrap();
        let moved = own(&state, address("192.0.2.7")).unwrap();
        assert_eq!(local.certificate, moved.certificate);
        assert!(is_for(&moved, address("127.0.0.1")));
        assert!(is_for(&moved, address("::1")));
        assert!(!is_for(&moved, address("192.0.2.7")));
        std::fs::remove_file(&moved.certificate).unwrap();
        let made = own(&state, address("192.0.2.7")).unwrap();
        assert!(is_for(&made, address("192.0.2.7")));
    }
}

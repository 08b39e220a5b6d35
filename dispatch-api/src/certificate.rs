//! The server's certificate: a given one, or one it makes for itself once.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

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
    if !listen.is_unspecified() && !listen.is_loopback() {
        names.push(listen.to_string());
    }
    let made = rcgen::generate_simple_self_signed(names)
        .map_err(|problem| CertificateError::Make(problem.to_string()))?;
    state.write_private("certificate.key", &made.signing_key.serialize_pem())?;
    state.write_private("certificate.pem", &made.cert.pem())?;
    Ok(files)
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

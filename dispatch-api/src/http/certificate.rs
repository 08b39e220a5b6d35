//! The TLS certificate of connections, from files: given ones, or those of the server's own
//! authority.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::state_dir::StateError;

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

/// Paths of certificate and key.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The certificate that new connections get. It can be replaced while the server runs.
#[derive(Debug)]
pub struct CurrentCertificate {
    key: RwLock<Arc<CertifiedKey>>,
}

impl CurrentCertificate {
    pub fn load(files: &CertificateFiles) -> Result<Self, CertificateError> {
        let key = RwLock::new(Arc::new(load_key(files)?));
        Ok(Self { key })
    }

    /// Replaces the certificate by that of the files. Open connections go on.
    pub fn reload(&self, files: &CertificateFiles) -> Result<(), CertificateError> {
        let key = Arc::new(load_key(files)?);
        *self.key.write() = key;
        Ok(())
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.key.read();
        Some(key.clone())
    }
}

pub fn server_config(
    certificate: Arc<CurrentCertificate>,
) -> Result<Arc<ServerConfig>, CertificateError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| CertificateError::Make(error.to_string()))?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn load_key(files: &CertificateFiles) -> Result<CertifiedKey, CertificateError> {
    let unreadable = |what: &'static str, path: &Path, why: String| CertificateError::Unreadable {
        what,
        path: path.display().to_string(),
        why,
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(|why| unreadable("the certificate", &files.certificate, why.to_string()))?;
    if chain.is_empty() {
        let why = "the file contains no certificate".to_owned();
        return Err(unreadable("the certificate", &files.certificate, why));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|why| unreadable("the key", &files.key, why.to_string()))?;
    let mismatch = |why: rustls::Error| CertificateError::Mismatch {
        certificate: files.certificate.display().to_string(),
        key: files.key.display().to_string(),
        why: why.to_string(),
    };
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(chain, key, &provider).map_err(mismatch)
}

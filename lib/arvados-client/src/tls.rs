//! TLS configuration of an endpoint: certificates of the system, of a file, or any (only on
//! request).

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_native_certs::CertificateResult;

use crate::endpoint::Endpoint;

/// Files with the certificates of the system in common distributions, the most common first.
pub const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The named CA file cannot be used.
    #[error("cannot read certificates from {path}: {detail}")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Why.
        detail: String,
    },
    /// The TLS library failed.
    #[error("cannot set up TLS: {0}")]
    Library(#[from] rustls::Error),
}

/// The TLS configuration of an endpoint.
pub(crate) fn config(endpoint: &Endpoint) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    if endpoint.insecure {
        let verifier = Arc::new(AnyCertificate(provider));
        return Ok(builder
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth());
    }
    let mut roots = RootCertStore::empty();
    match &endpoint.ca_file {
        Some(path) => {
            let fail = |detail: String| TlsError::CaFile {
                path: path.clone(),
                detail,
            };
            let certs = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|e| fail(e.to_string()))?;
            // A bundle of a system may have old certificates that this library does not accept.
            roots.add_parsable_certificates(certs);
            if roots.is_empty() {
                return Err(fail("it holds no usable certificate".into()));
            }
        }
        None => {
            let named = std::env::var_os("SSL_CERT_FILE");
            roots.add_parsable_certificates(system_certificates(named.as_deref()).certs);
        }
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Certificates of the system; `named` is `SSL_CERT_FILE`.
fn system_certificates(named: Option<&OsStr>) -> CertificateResult {
    if named.is_none_or(|named| !named.is_empty()) {
        return rustls_native_certs::load_native_certs();
    }
    // An empty variable counts as unset everywhere but in that library, which then finds no
    // certificates.
    let found = openssl_probe::probe();
    let dir = found.cert_dir.first().map(PathBuf::as_path);
    rustls_native_certs::load_certs_from_paths(found.cert_file.as_deref(), dir)
}

/// Accepts every certificate whose key the peer has; the connection is still encrypted. For
/// `ARVADOS_API_HOST_INSECURE`, and for a gateway, which authenticates by a secret.
#[derive(Debug)]
pub struct AnyCertificate(pub Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_empty_name_of_a_certificate_file_is_none() {
        let certificates = |named| {
            let certs = system_certificates(named).certs;
            certs.iter().map(|c| c.to_vec()).collect::<BTreeSet<_>>()
        };
        assert_eq!(certificates(Some("".as_ref())), certificates(None));
    }
}

//! TLS configuration of an endpoint: certificates of the system, of a file, or any (only on
//! request).

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
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
        return Ok(builder
            .dangerous()
            .with_custom_certificate_verifier(any_certificate(&provider))
            .with_no_client_auth());
    }
    let unusable = |path: &PathBuf, detail: String| TlsError::CaFile {
        path: path.clone(),
        detail,
    };
    let trusted: Vec<CertificateDer<'static>> = match &endpoint.ca_file {
        Some(path) => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|e| unusable(path, e.to_string()))?,
        None => system_certificates(std::env::var_os("SSL_CERT_FILE").as_deref()).certs,
    };
    let mut roots = RootCertStore::empty();
    // A bundle of a system may have old certificates that this library does not accept.
    roots.add_parsable_certificates(trusted.iter().cloned());
    if roots.is_empty() {
        return match &endpoint.ca_file {
            Some(path) => Err(unusable(path, "it holds no usable certificate".into())),
            None => Ok(builder.with_root_certificates(roots).with_no_client_auth()),
        };
    }
    let verifier = Arc::new(Verifier::trusting(roots, trusted, provider)?);
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// A verifier that accepts every certificate whose key the peer has; the connection is still
/// encrypted. For `ARVADOS_API_HOST_INSECURE`, and for a gateway, which authenticates by a secret.
pub fn any_certificate(provider: &CryptoProvider) -> Arc<dyn ServerCertVerifier> {
    Arc::new(Verifier {
        algorithms: provider.signature_verification_algorithms,
        trust: None,
    })
}

#[derive(Debug)]
struct Verifier {
    algorithms: WebPkiSupportedAlgorithms,
    /// None accepts every certificate.
    trust: Option<Trust>,
}

/// What an authority has signed, and trusted certificates that are their own authority, as
/// `openssl req -x509` makes them. OpenSSL and Go accept them, too.
#[derive(Debug)]
struct Trust {
    by_authority: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn trusting(
        roots: RootCertStore,
        trusted: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, rustls::Error> {
        let algorithms = provider.signature_verification_algorithms;
        let by_authority = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        let trust = Some(Trust {
            by_authority,
            trusted,
        });
        Ok(Self { algorithms, trust })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(trust) = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        let authority = &trust.by_authority;
        match authority.verify_server_cert(cert, chain, name, ocsp, now) {
            // Its dates were checked before.
            Err(error) if is_own_authority(&error) && trust.trusted.contains(cert) => {
                verify_server_name(&ParsedCertificate::try_from(cert)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether a certificate was refused only because it is one of an authority.
fn is_own_authority(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    let other = other.0.downcast_ref::<webpki::Error>();
    other == Some(&webpki::Error::CaUsedAsEndEntity)
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

    /// As `openssl req -x509` makes it, with basicConstraints CA:TRUE.
    #[test]
    fn a_trusted_certificate_may_be_its_own_authority() {
        let made = |year: i32, is_ca: bool| {
            let mut params = rcgen::CertificateParams::new(vec!["here.example".into()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            if is_ca {
                params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            }
            let key = rcgen::KeyPair::generate().unwrap();
            params.self_signed(&key).unwrap().der().clone()
        };
        let trusted = [made(4000, true), made(2001, true), made(4000, false)];
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusted.iter().cloned());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier::trusting(roots, trusted.to_vec(), provider).unwrap();
        for (what, cert, name, accepted) in [
            ("an authority", &trusted[0], "here.example", true),
            ("another name", &trusted[0], "there.example", false),
            ("expired", &trusted[1], "here.example", false),
            ("no authority", &trusted[2], "here.example", true),
            ("not trusted", &made(4000, true), "here.example", false),
        ] {
            let name = ServerName::try_from(name).unwrap();
            let verified = verifier.verify_server_cert(cert, &[], &name, &[], UnixTime::now());
            assert_eq!(verified.is_ok(), accepted, "{what}: {verified:?}");
        }
    }
}

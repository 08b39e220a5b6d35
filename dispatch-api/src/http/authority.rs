//! The server's own certificate authority, in its state directory: it issues and renews the
//! server's certificate.
//!
//! Clients trust the authority's certificate, `certificate.pem`, which never changes. So a renewed
//! certificate, or one for another address, needs no new file on any client: OpenSSL and rustls
//! accept whatever the authority issued. A self-signed certificate would not do, because OpenSSL
//! wants the very certificate that it was given.
//!
//! The authority is for this server only. Its name constraints permit the host names of the first
//! start and addresses, so its key is of no use against other servers that a client trusts.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tracing::warn;

use super::certificate::{CertificateError, CertificateFiles};
use crate::state_dir::{StateDir, StateError, replace_private};

/// File with the authority's key and certificate: one file, so that they always belong together.
const AUTHORITY_FILE: &str = "authority.pem";
/// File with the certificate that clients trust.
const TRUSTED_FILE: &str = "certificate.pem";
/// File with the key and the certificate of the server.
const SERVER_FILE: &str = "server.pem";
/// All of them.
pub const FILES: &[&str] = &[AUTHORITY_FILE, TRUSTED_FILE, SERVER_FILE];
/// The server's certificate is valid from the day that it was this time ago.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_hours(1);
/// Validity of the server's certificate; some clients refuse more than 398 days.
const CERTIFICATE_VALIDITY: SignedDuration = SignedDuration::from_hours(397 * 24);
/// Remaining validity at which the certificate is renewed.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(90 * 24);

/// The authority and the names that the server's certificate must have.
pub struct Authority {
    state_path: PathBuf,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    names: Vec<String>,
}

impl Authority {
    /// Opens the authority of the state directory, and creates it if it is missing. Adds `listen`
    /// to the addresses of earlier starts.
    pub fn open(state: &mut StateDir, listen: IpAddr) -> Result<Self, CertificateError> {
        let path = state.path.join(AUTHORITY_FILE);
        let (pem, is_new) = match fs::read_to_string(&path) {
            Ok(pem) => (pem, false),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                let names = own_names();
                let pem = create_authority(&state.identity.cluster_id, &names)?;
                state.write_private(AUTHORITY_FILE, &pem)?;
                state.save_certificate_names(names)?;
                (pem, true)
            }
            Err(error) => return Err(unreadable(&path, error.to_string())),
        };
        let damaged = |why: String| unreadable(&path, why);
        let trusted = pem
            .find("-----BEGIN CERTIFICATE-----")
            .map(|begin| &pem[begin..])
            .ok_or_else(|| damaged("it has no certificate".to_owned()))?;
        let certificate = CertificateDer::from_pem_slice(trusted.as_bytes())
            .map_err(|error| damaged(error.to_string()))?;
        let key = KeyPair::from_pem(&pem).map_err(|error| damaged(error.to_string()))?;
        let authority = Self {
            state_path: state.path.clone(),
            certificate,
            issuer: Issuer::new(authority_params(&state.identity.cluster_id, &[]), key),
            names: add_address(state, listen)?,
        };
        authority.write_trusted_file(trusted, is_new)?;
        Ok(authority)
    }

    /// The file that clients trust.
    pub fn trusted_file(&self) -> PathBuf {
        self.state_path.join(TRUSTED_FILE)
    }

    /// Writes the file that clients trust, unless it is there.
    fn write_trusted_file(&self, pem: &str, is_new: bool) -> Result<(), CertificateError> {
        let path = self.trusted_file();
        if fs::read_to_string(&path).is_ok_and(|known| known == pem) {
            return Ok(());
        }
        if is_new && path.exists() {
            warn!(certificate = %path.display(),
                  "the server has a certificate authority now: give this new file to all clients, which refuse the server until then");
        }
        Ok(replace_private(&path, pem)?)
    }

    /// Files of the server's certificate and key.
    pub fn server_files(&self) -> CertificateFiles {
        let path = self.state_path.join(SERVER_FILE);
        CertificateFiles {
            certificate: path.clone(),
            key: path,
        }
    }

    /// Issues the server's certificate if it is missing, ends soon, or lacks a name. Returns
    /// whether it did.
    pub fn renew_if_due(&self, now: Timestamp) -> Result<bool, CertificateError> {
        if self.is_accepted(now + RENEW_BEFORE) {
            return Ok(false);
        }
        let pem = self.issue(now + CERTIFICATE_VALIDITY)?;
        replace_private(&self.state_path.join(SERVER_FILE), &pem)?;
        Ok(true)
    }

    /// Whether a client accepts the server's certificate at that time, under every name.
    fn is_accepted(&self, at: Timestamp) -> bool {
        let file = self.server_files().certificate;
        let Ok(certificate) = CertificateDer::from_pem_file(file) else {
            return false;
        };
        let mut roots = RootCertStore::empty();
        if roots.add(self.certificate.clone()).is_err() {
            return false;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let Ok(verifier) = builder.build() else {
            return false;
        };
        let seconds = u64::try_from(at.as_second()).unwrap_or_default();
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        self.names.iter().all(|name| {
            ServerName::try_from(name.as_str()).is_ok_and(|name| {
                let verified = verifier.verify_server_cert(&certificate, &[], &name, &[], at);
                verified.is_ok()
            })
        })
    }

    fn issue(&self, until: Timestamp) -> Result<String, CertificateError> {
        let make = || -> Result<String, rcgen::Error> {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(self.names.clone())?;
            params
                .distinguished_name
                .push(DnType::CommonName, "dispatch-api");
            let day = |time: Timestamp| {
                let date = time.to_zoned(TimeZone::UTC).date();
                let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
                rcgen::date_time_ymd(i32::from(date.year()), month, day)
            };
            params.not_after = day(until);
            // Clients limit the whole span, and some clocks are slow.
            params.not_before = day(Timestamp::now() - MAX_CLOCK_DIFFERENCE);
            params.use_authority_key_identifier_extension = true;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            let certificate = params.signed_by(&key, &self.issuer)?;
            Ok(key.serialize_pem() + &certificate.pem())
        };
        make().map_err(make_error)
    }
}

/// A new authority: its key and its certificate.
fn create_authority(cluster_id: &str, names: &[String]) -> Result<String, CertificateError> {
    let make = || -> Result<String, rcgen::Error> {
        let key = KeyPair::generate()?;
        let certificate = authority_params(cluster_id, names).self_signed(&key)?;
        Ok(key.serialize_pem() + &certificate.pem())
    };
    make().map_err(make_error)
}

/// The authority's certificate has no planned end: nobody could renew it on clients.
fn authority_params(cluster_id: &str, names: &[String]) -> CertificateParams {
    let mut params = CertificateParams::default();
    let name = format!("dispatch-api authority of {cluster_id}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let is_host = |name: &&String| name.parse::<IpAddr>().is_err();
    let mut permitted: Vec<GeneralSubtree> = names
        .iter()
        .filter(is_host)
        .map(|name| GeneralSubtree::DnsName(name.clone()))
        .collect();
    permitted.extend([
        GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([0; 4], 0)),
        GeneralSubtree::IpAddress(CidrSubnet::from_v6_prefix([0; 16], 0)),
    ]);
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: permitted,
        excluded_subtrees: Vec::new(),
    });
    params
}

/// The names of the certificate, with the address of this start.
fn add_address(state: &mut StateDir, listen: IpAddr) -> Result<Vec<String>, StateError> {
    let mut names = state.identity.certificate_names.clone();
    let address = listen.to_string();
    if !listen.is_unspecified() && !names.contains(&address) {
        names.push(address);
        state.save_certificate_names(names.clone())?;
    }
    Ok(names)
}

/// The names of this machine for its own users, and its host name for others.
fn own_names() -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".into(), "::1".into()];
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy().into_owned();
    let is_usable = ServerName::try_from(host.as_str()).is_ok() && host.is_ascii();
    if is_usable && !names.contains(&host) {
        names.push(host);
    }
    names
}

fn unreadable(path: &Path, why: String) -> CertificateError {
    CertificateError::Unreadable {
        what: "the certificate authority",
        path: path.display().to_string(),
        why,
    }
}

fn make_error(error: rcgen::Error) -> CertificateError {
    CertificateError::Make(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn open(dir: &Path, listen: &str) -> Authority {
        let mut state = StateDir::open(dir, None).unwrap();
        Authority::open(&mut state, address(listen)).unwrap()
    }

    #[test]
    fn a_new_address_is_added_and_what_clients_trust_stays() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let first = open(dir.path(), "127.0.0.1");
        assert!(first.renew_if_due(now).unwrap());
        assert!(!first.renew_if_due(now).unwrap());
        let trusted = fs::read(first.trusted_file()).unwrap();
        let moved = open(dir.path(), "192.0.2.7");
        assert!(moved.renew_if_due(now).unwrap());
        // A start at the first address again keeps the certificate, which has both.
        let back = open(dir.path(), "127.0.0.1");
        assert!(!back.renew_if_due(now).unwrap());
        assert!(back.names.contains(&"192.0.2.7".to_owned()));
        assert!(back.is_accepted(now));
        assert_eq!(fs::read(back.trusted_file()).unwrap(), trusted);
    }

    #[test]
    fn it_is_renewed_well_before_it_ends_for_clients_that_trust_the_first_file() {
        let dir = tempfile::tempdir().unwrap();
        let authority = open(dir.path(), "::");
        let now = Timestamp::now();
        authority.renew_if_due(now).unwrap();
        let trusted = fs::read(authority.trusted_file()).unwrap();
        let end = now + CERTIFICATE_VALIDITY;
        let day = SignedDuration::from_hours(24);
        assert!(!authority.renew_if_due(end - RENEW_BEFORE - day).unwrap());
        assert!(!authority.is_accepted(end + day));
        assert!(authority.renew_if_due(end - RENEW_BEFORE + day).unwrap());
        assert!(authority.is_accepted(end + day));
        assert_eq!(fs::read(authority.trusted_file()).unwrap(), trusted);
    }

    #[test]
    fn it_vouches_for_no_other_host() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = open(dir.path(), "127.0.0.1");
        let now = Timestamp::now();
        authority.names = vec!["arvados.example".to_owned()];
        authority.renew_if_due(now).unwrap();
        assert!(!authority.is_accepted(now), "name constraints");
    }

    #[test]
    fn a_self_signed_certificate_of_an_earlier_version_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let old = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(dir.path().join(TRUSTED_FILE), old.cert.pem()).unwrap();
        let authority = open(dir.path(), "127.0.0.1");
        let trusted = fs::read_to_string(authority.trusted_file()).unwrap();
        assert!(trusted.starts_with("-----BEGIN CERTIFICATE"), "{trusted}");
        assert_ne!(trusted, old.cert.pem());
    }
}

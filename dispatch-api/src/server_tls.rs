//! The certificate of the server: given by files, or made and renewed by its own authority.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use tracing::{info, warn};

use crate::http::authority::Authority;
use crate::http::certificate::{CertificateError, CertificateFiles, CurrentCertificate};
use crate::options::Options;
use crate::state_dir::StateDir;

/// The certificate of connections, and the authority that renews it unless the files were given.
pub struct ServerTls {
    pub current: Arc<CurrentCertificate>,
    authority: Option<Authority>,
    /// What clients trust.
    pub trusted_file: PathBuf,
}

impl ServerTls {
    pub fn open(
        options: &Options,
        state: &mut StateDir,
        listen: IpAddr,
    ) -> Result<Self, CertificateError> {
        if let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) {
            let files = CertificateFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            };
            return Ok(Self {
                current: Arc::new(CurrentCertificate::load(&files)?),
                authority: None,
                trusted_file: files.certificate,
            });
        }
        let authority = Authority::open(state, listen)?;
        let files = authority.server_files();
        match authority.renew_if_due(Timestamp::now()) {
            // Most likely the disk is full; the old certificate still works for a while.
            Err(problem) if files.certificate.exists() => {
                warn!(error = %problem, "cannot renew the certificate; retrying in one minute");
            }
            renewed => drop(renewed?),
        }
        Ok(Self {
            current: Arc::new(CurrentCertificate::load(&files)?),
            trusted_file: authority.trusted_file(),
            authority: Some(authority),
        })
    }

    /// Renews the certificate if it ends soon. Open connections go on.
    pub fn renew_if_due(&self, now: Timestamp) -> Result<(), CertificateError> {
        let Some(authority) = &self.authority else {
            return Ok(());
        };
        if authority.renew_if_due(now)? {
            self.current.reload(&authority.server_files())?;
            info!("renewed the server's certificate");
        }
        Ok(())
    }
}

//! Bytes nobody can guess, for keys and secrets.

use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Fill with bytes from the kernel.
pub fn fill(bytes: &mut [u8]) {
    static SOURCE: OnceLock<Mutex<File>> = OnceLock::new();
    let source = SOURCE.get_or_init(|| {
        Mutex::new(File::open("/dev/urandom").expect("/dev/urandom can be opened on every Linux"))
    });
    source
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .read_exact(bytes)
        .expect("/dev/urandom never ends");
}

/// A key of 32 bytes in hexadecimal.
pub fn key() -> String {
    let mut bytes = [0u8; 32];
    fill(&mut bytes);
    data_encoding::HEXLOWER.encode(&bytes)
}

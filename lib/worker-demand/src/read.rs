//! Reads a demand file: bytes in, a checked [`Demand`] or the reason of the refusal out.

use crate::demand::{Demand, MAX_FILE_BYTES};
use crate::error::ReadError;
use crate::{json, lisp};

impl Demand {
    /// Reads a file in either form, JSON or Lisp.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        if bytes.len() > MAX_FILE_BYTES {
            return Err(ReadError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|e| ReadError::NotText(e.valid_up_to()))?;
        match text.trim_start().starts_with('{') {
            true => json::read(text),
            false => lisp::read(text),
        }
    }
}

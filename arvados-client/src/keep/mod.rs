//! Keep, the content-addressed block store: locators, signatures, and a client for its servers.

pub mod locator;
pub mod signature;

pub use locator::{BlockHash, Locator, LocatorError, MAX_BLOCK_SIZE};
pub use signature::{Signature, SignatureError};

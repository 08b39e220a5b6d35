//! Keep, the content-addressed block store: locators, signatures, and a client for its servers.

pub mod locator;

pub use locator::{BlockHash, Locator};

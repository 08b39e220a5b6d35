//! Keep, the content-addressed block store: locators and signatures, a client for its servers, and files over blocks.
//!
//! From the bottom up: [`Locator`] names a block; [`BlockSource`] and [`BlockStore`] are anything that holds blocks
//! ([`KeepClient`] over HTTP, [`MemoryStore`], a cache); [`FileReader`] and [`CollectionWriter`] turn blocks into files
//! and files into blocks, holding a bounded number of blocks in memory.

pub mod client;
mod error;
pub mod file_part;
pub mod locator;
pub mod memory;
pub mod reader;
pub mod recent;
pub mod service;
pub mod service_list;
pub mod signature;
pub mod store;
pub mod writer;

pub use client::{KeepClient, KeepOptions};
pub use error::{Cause, Failure, KeepError};
pub use file_part::FilePart;
pub use locator::{BlockHash, Locator, LocatorError, MAX_BLOCK_SIZE};
pub use memory::MemoryStore;
pub use reader::FileReader;
pub use recent::RecentBlocks;
pub use service::{Service, ServiceError};
pub use service_list::ServiceList;
pub use signature::{Signature, SignatureError};
pub use store::{BlockSource, BlockStore};
pub use writer::CollectionWriter;

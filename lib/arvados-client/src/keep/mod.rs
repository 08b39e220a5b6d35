//! Keep, the content-addressed block store: signatures, a client of its services, and files made of
//! blocks.
//!
//! From the bottom up: [`Locator`] identifies a block. [`BlockSource`] and [`BlockStore`] are the
//! traits of stores ([`KeepClient`] over HTTP, [`MemoryStore`], a cache). [`FileReader`] reads
//! files from blocks and [`CollectionWriter`] writes them as blocks, with a bounded number of
//! blocks in memory.

pub mod block_lru;
pub mod client;
mod error;
pub mod file_part;
pub mod memory;
pub mod reader;
pub mod service;
pub mod service_list;
pub mod signature;
pub mod store;
pub mod writer;

pub use crate::locator::{BlockHash, Locator, LocatorError, MAX_BLOCK_SIZE};
pub use block_lru::BlockLru;
pub use client::{KeepClient, KeepOptions};
pub use error::{Cause, Failure, KeepError};
pub use file_part::FilePart;
pub use memory::MemoryStore;
pub use reader::FileReader;
pub use service::{Service, ServiceError};
pub use service_list::ServiceList;
pub use signature::{Signature, SignatureError};
pub use store::{BlockSource, BlockStore};
pub use writer::CollectionWriter;

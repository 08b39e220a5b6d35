//! Copies of a state directory and its check: `dispatch-api backup`, `restore` and `fsck`.
//!
//! A backup has the layout of a state directory, with `backup.json` beside. Its database is one
//! moment of the server's, and every block that this database names is there. A kill at any moment
//! leaves the backup before or the new one, and never a mixture: blocks come first, the database
//! replaces the old one by a rename, and what only the old one names is removed last.
//!
//! `backup` and `fsck` only read the state directory, so a server may use it meanwhile.

pub mod command;
mod copy_blocks;
mod create;
mod error;
mod files;
mod fsck;
mod restore;
mod snapshot;

pub use copy_blocks::{BadBlock, Damage};
pub use create::create;
pub use error::BackupError;
pub use fsck::{Depth, FsckReport, fsck};
pub use restore::restore;
pub use snapshot::{CopyReport, DamageReport, DamagedCollection};

//! When the next listing is due: an epilog can ask for one, within a limit.

pub mod epilog_watcher;
pub mod listing_burst;

//! What the end-to-end tests of the suite stand on: a scheduler and an API connection that fail as they are told.
//! The tests themselves are under `tests/`.

pub mod fake_sched;
pub mod figures;
pub mod proxy;

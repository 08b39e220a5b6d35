//! Results that could not be delivered: the record of them, their move to a safe directory, their
//! later delivery.

pub mod record;
pub mod relocate;
pub mod resume;

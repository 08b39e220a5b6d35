//! The Keep client with services that work, send wrong content, fail, stall and refuse.

mod get;
mod put;
mod services;

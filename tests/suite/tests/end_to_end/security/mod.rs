//! Attacks: on the server, by users on each other, and by containers on their node.

mod deletion;
mod disk_limits;
mod permanent_failures;
mod shared_dirs;
mod storms;
mod tls;

//! Logs of containers while they run and afterwards, as the real server's controller offers them.
//!
//! crunch-run connects and lets the server open streams on that connection (`open`, `tunnel`, `tunnels`). A request for
//! a log goes through such a stream to crunch-run's gateway (`proxy`), or is answered from what was saved (`saved`);
//! `log_route` decides which. Both ends prove that they know the secret of the gateway (`secret`).

mod listing;
pub mod log_route;
pub mod open;
mod proxy;
mod saved;
mod secret;
mod tunnel;
pub mod tunnels;

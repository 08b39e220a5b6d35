//! The shared core of all dispatchers: a controller that observes, plans and acts.
//!
//! Input: containers from the API server ([`api`]) and jobs from a scheduler ([`scheduler`]).
//! Output: locks, submissions, cancellations and updates of container records.
//!
//! - [`model`], [`mod@plan`] and [`reconcile`] are pure. [`model::world`] holds the observed state,
//!   and [`model::container_view`] joins it for one container. [`mod@plan`] derives the actions,
//!   and [`reconcile`] keeps the state between snapshots.
//! - [`observe`] fetches snapshots, [`act`] runs tasks, and [`controller`] is the loop.
//! - A dispatcher's `main` passes its [`scheduler::Scheduler`] to the [`Controller`].

pub mod act;
pub mod api;
pub mod config;
pub mod controller;
pub mod model;
pub mod observe;
pub mod plan;
pub mod reconcile;
pub mod report;
pub mod scheduler;
pub mod service;

pub use act::attempt_tokens::TokenMode;
pub use api::Api;
pub use config::settings::Settings;
pub use controller::Controller;
pub use model::job_presence::JobPresence;
pub use model::reason::Reason;
pub use model::world::World;
pub use plan::{Action, Policy, plan};
pub use report::health::Health;
pub use scheduler::Scheduler;

//! The dispatcher engine: observe → plan → act.
//!
//! The heart is pure: what is known ([`world`]), what is known of a container's job ([`facts`]), and what follows
//! from it ([`plan`]); [`mind`] keeps all of it. Around it, [`observe`] looks, [`act`] acts, and [`engine`] is the
//! loop. The API server is a few verbs ([`api`]), and so is a scheduler ([`scheduler`]); a program's `main` hands its
//! scheduler to the engine and that is all.

pub mod act;
pub mod admission;
pub mod api;
pub mod asked;
pub mod attempt_dir;
pub mod attempts;
pub mod audit;
pub mod backoff;
pub mod check;
pub mod command;
pub mod config;
pub mod credentials;
mod doubts;
pub mod dry_run;
pub mod engine;
pub mod errand;
pub mod events;
pub mod exit_status;
pub mod explain;
pub mod facts;
pub mod handover;
pub mod health;
pub mod home;
pub mod instance_types;
pub mod last_log;
pub mod lately;
mod lines;
pub mod manual;
pub mod mind;
pub mod needs;
pub mod news;
pub mod nodes;
pub mod observe;
pub mod pace;
pub mod plan;
pub mod program;
pub mod records;
pub mod scheduler;
pub mod settings;
pub mod stopping;
pub mod template;
mod tempo;
mod trouble;
pub mod world;

pub use api::Api;
pub use attempts::TokenMode;
pub use engine::Engine;
pub use facts::Presence;
pub use health::Health;
pub use plan::{Action, Policy, Reason, plan};
pub use scheduler::Scheduler;
pub use settings::Settings;
pub use world::World;

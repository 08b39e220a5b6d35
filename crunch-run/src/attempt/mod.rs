//! One attempt at one container, from its record to its final state. [`run::run_attempt`] calls the
//! phases in order: claim, prepare, start, command, finish.

pub mod claim;
pub mod cleanup;
pub mod context;
pub mod create_container;
pub mod deliver;
pub mod disk_reserve;
mod end_report;
pub mod failure;
mod files_outside_output;
pub mod image;
pub mod instance_type;
pub mod keep_archive;
mod kept_output;
mod left_to_dispatcher;
pub mod limits_of_record;
pub mod locked_phase;
pub mod retried_operation;
pub mod retrying_store;
pub mod run;
pub mod run_command;
pub mod running_phase;
pub mod runtime;
pub mod runtime_status;
pub mod save_output;
pub mod scratch_dir;
pub mod server_info;
pub mod settings;
pub mod spec;
pub mod timings;
pub mod token_refusals;
pub mod unsatisfiable_request;
pub mod wait_for_command;

pub use self::settings::{Settings, SettingsError, endpoint};

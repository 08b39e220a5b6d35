//! The whole suite as its users have it: real programs, real containers, one machine. Needs root and busybox-static.

mod bad_input;
mod batch;
mod condor;
mod crunchstat;
mod docs;
mod image;
mod kill_points;
mod kills;
mod lab;
mod left;
mod neighbours;
mod overseer;
mod points;
mod process_faults;
mod program;
mod sdk;
mod secrets;
mod slurm;
mod slurm_accounts;
mod slurm_campaign;
mod slurm_faults;
mod slurm_lab;
mod slurm_setup;
mod stack;
mod starts;
mod up;

//! The dispatchers' programs with schedulers and an API connection that have scripted faults. Each
//! test is a row of the fault matrix in `docs/reliability.md`. Most also run on a real Slurm and a
//! real HTCondor, whose commands fail as scripted. Needs root and busybox-static.

mod api;
mod arrays;
mod backend;
mod emulated;
mod fixture;
mod hang;
mod listing;
mod real_backend;
mod results;
mod states;
mod stop;
mod submit;
mod submit_host;
mod tokens;

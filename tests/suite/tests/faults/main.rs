//! The dispatchers' programs with schedulers and an API connection that have scripted faults. Each
//! test is a row of the fault matrix in `docs/reliability.md`. Most also run on a real Slurm and a
//! real HTCondor, whose commands fail as scripted. Needs root and busybox-static.

mod api;
mod arrays;
mod backend;
#[path = "../end_to_end/condor_lab.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod condor_lab;
mod emulated;
#[path = "../end_to_end/fail_point_dir.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod fail_point_dir;
mod fixture;
mod hang;
#[path = "../end_to_end/image.rs"]
mod image;
#[path = "../end_to_end/lab.rs"]
mod lab;
mod listing;
#[path = "../end_to_end/processes.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod processes;
#[path = "../end_to_end/program.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod program;
mod real_backend;
mod results;
#[path = "../end_to_end/slurm_lab.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod slurm_lab;
#[path = "../end_to_end/stack.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod stack;
mod states;
mod stop;
mod submit;

//! The dispatchers, as programs, against schedulers and an API connection that fail as they are told. Each test is a
//! row of the fault matrix in `docs/reliability.md`. What needs no fake is played on a real Slurm and a real HTCondor as
//! well, whose commands fail as told. Needs root and busybox-static.

mod api;
mod arrays;
mod beneath;
#[path = "../suite/condor_lab.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod condor_lab;
mod emulated;
mod hang;
#[path = "../suite/image.rs"]
mod image;
#[path = "../suite/lab.rs"]
mod lab;
mod listing;
#[path = "../suite/points.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod points;
#[path = "../suite/processes.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod processes;
#[path = "../suite/program.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod program;
mod results;
mod scene;
#[path = "../suite/slurm_lab.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod slurm_lab;
#[path = "../suite/stack.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod stack;
mod states;
mod stop;
mod submit;

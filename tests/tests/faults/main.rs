//! The dispatchers, as programs, against schedulers and an API connection that fail as they are told. Each test is a
//! row of the fault matrix in `docs/reliability.md`. Needs root and busybox-static.

mod api;
mod arrays;
mod hang;
#[path = "../suite/image.rs"]
mod image;
mod listing;
#[path = "../suite/points.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod points;
#[path = "../suite/program.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod program;
mod scene;
#[path = "../suite/stack.rs"]
#[allow(dead_code, reason = "the suite uses more of it than this does")]
mod stack;
mod states;
mod stop;
mod submit;

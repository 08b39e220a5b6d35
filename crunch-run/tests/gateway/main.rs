//! The container gateway, asked through a tunnel as Arvados's controller does it.

mod controller;
mod embedded;
mod live;
#[path = "../run_lab/mod.rs"]
mod run_lab;
mod served;

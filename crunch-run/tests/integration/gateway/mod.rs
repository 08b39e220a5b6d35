//! The container gateway, with requests through a tunnel like those of Arvados's controller.

mod controller;
mod embedded;
mod live;
mod served;

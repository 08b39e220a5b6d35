//! Tests of the server over HTTPS, with the requests that its clients make.

mod attempt_tokens;
mod authorization_matrix;
mod block_signatures;
mod blocks;
mod browser;
mod bulk;
mod collections;
mod container_requests;
mod container_tokens;
mod containers;
mod contents;
mod emulation;
mod events;
mod fixture;
mod floods;
mod garbage;
mod garbage_beside_jobs;
mod gateway;
mod listing;
mod processes;
mod replace_files;
mod retries;
mod takeovers;
mod tokens;
mod workflows;

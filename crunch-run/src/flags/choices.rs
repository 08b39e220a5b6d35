//! Values of flags with few choices.

use clap::ValueEnum;

pub use container_engine::EngineChoice;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MountMethod {
    /// Download all files before the command starts, through the node's cache
    Copy,
    /// Read files on demand, through a tree that arv-mount serves
    ArvMount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Networking {
    /// Only for containers with runtime_constraints.API
    Default,
    /// For every container
    Always,
}

/// Whether containers of root get users of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UserNamespaces {
    /// If the kernel and the file systems can map users, and the container has no GPU
    Auto,
    /// Never
    Off,
}

/// Whether live logs are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GatewayChoice {
    /// If there is a gateway secret, or the server accepts any
    Auto,
    /// Never
    Off,
}

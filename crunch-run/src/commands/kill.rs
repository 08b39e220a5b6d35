//! `crunch-run --kill SIGNAL UUID`: sends a signal to the runs of a container on this node.

use std::process::ExitCode;

use arvados_client::ContainerUuid;
use rustix::process::Signal;

use crate::environment;
use crate::node::registry;

/// Succeeds if all runs ended within a second.
pub fn run(signal: Signal, uuid: &ContainerUuid) -> anyhow::Result<ExitCode> {
    let dir = registry::directory(environment::variable);
    if registry::kill(&dir, uuid, signal)? {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("crunch-run: {uuid} received the signal and still runs");
    Ok(ExitCode::FAILURE)
}

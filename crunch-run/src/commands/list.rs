//! `crunch-run --list`: prints the containers that run on this node, as upstream's crunch-run does.

use std::io::Write;
use std::process::ExitCode;

use crate::environment;
use crate::node::registry;

/// Prints each container uuid once, one a line.
pub fn run() -> anyhow::Result<ExitCode> {
    let mut uuids: Vec<_> = registry::list(&registry::directory(environment::variable))?
        .into_iter()
        .map(|entry| entry.uuid)
        .collect();
    uuids.dedup();
    let mut out = std::io::stdout().lock();
    for uuid in uuids {
        writeln!(out, "{uuid}")?;
    }
    Ok(ExitCode::SUCCESS)
}

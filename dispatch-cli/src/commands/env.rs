//! `dispatch env`: the two lines of the `up` that is running.

use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;
use crate::state_dir::StateDir;

/// Print the lines that let other programs use the running 'dispatch up': eval "$(dispatch env)"
#[derive(Debug, Args)]
pub struct Env {}

pub fn run(state: &StateDir, out: Output) -> Result<(), Failure> {
    if !out.json {
        return out.bytes(state.env()?.as_bytes());
    }
    let endpoint = state.endpoint()?;
    out.json(&json!({
        "ARVADOS_API_HOST": endpoint.host,
        "ARVADOS_API_HOST_INSECURE": "1",
        "ARVADOS_API_TOKEN": endpoint.token.expose(),
    }))
}

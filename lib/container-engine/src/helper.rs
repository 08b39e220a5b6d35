//! Entry point of the helper processes: this program, re-executed with a special first argument.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::docker::chown::helper;
use crate::shim::protocol::{CreateSpec, SHIM_ARGUMENT};
use crate::shim::runtime::Runtime;
use crate::shim::sandbox::{CreatedResources, Sandbox};
use crate::shim::{InitProcess, pid1, server, user_namespace};
use crate::{StartError, apptainer, builtin, oci};

/// Runs a helper and exits, if the first argument of this process names one: the shim of a
/// container, pid 1 of its namespace, the creator of a user namespace, or the helper that changes
/// the owner of files.
///
/// Call it first in `main`, before any thread exists.
pub fn run_helper_if_requested() {
    let argument = std::env::args_os().nth(1);
    let outcome = if argument.as_deref() == Some(OsStr::new(SHIM_ARGUMENT)) {
        server::run(build_init)
    } else if argument.as_deref() == Some(OsStr::new(pid1::PID1_ARGUMENT)) {
        pid1::run()
    } else if argument.as_deref() == Some(OsStr::new(user_namespace::USER_NAMESPACE_ARGUMENT)) {
        user_namespace::run()
    } else if argument.as_deref() == Some(OsStr::new(helper::CHOWN_ARGUMENT)) {
        let dir = std::env::args_os().nth(2).unwrap_or_default();
        helper::change_owner(Path::new(&dir))
    } else {
        return;
    };
    std::process::exit(i32::from(outcome.is_err()));
}

/// Dispatches to the engine of the runtime. Here, so that the shim need not import the engines.
fn build_init(
    spec: &CreateSpec,
    sandbox: Sandbox,
    stdio: [OwnedFd; 3],
    created: &mut CreatedResources,
) -> Result<Box<dyn InitProcess>, StartError> {
    match &spec.runtime {
        Runtime::Library => builtin::build(spec, sandbox, stdio, created),
        Runtime::Oci(program) => oci::build(program, spec, sandbox, stdio, created),
        Runtime::Apptainer(program) => apptainer::build(program, spec, &sandbox, stdio, created),
    }
}

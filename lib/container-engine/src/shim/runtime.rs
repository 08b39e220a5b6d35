//! The program that makes a container inside the shim's sandbox, as data: libcontainer, an OCI
//! runtime, Apptainer or Singularity.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The program that creates the container in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// libcontainer, in the shim itself.
    Library,
    /// An OCI runtime by command.
    Oci(OciProgram),
    /// Apptainer or Singularity by command.
    Apptainer(ApptainerProgram),
}

impl Runtime {
    /// Whether a process of the container belongs to the runtime, not to the command.
    pub fn is_own(&self, pid: u32) -> bool {
        match self {
            Self::Library | Self::Oci(_) => false,
            Self::Apptainer(_) => is_apptainer_process(pid),
        }
    }

    /// The highest memory of one process, in bytes, if it is certain that this is one of the
    /// command. The kernel counts the runtime's own processes, too.
    pub fn memory_of_command(&self, largest_process: u64) -> Option<u64> {
        let is_certain = match self {
            Self::Library | Self::Oci(_) => true,
            Self::Apptainer(_) => largest_process > MAX_APPTAINER_MEMORY,
        };
        is_certain.then_some(largest_process)
    }
}

/// Memory that no process of Apptainer itself exceeds: it is written in Go, and needs about 25 MiB.
const MAX_APPTAINER_MEMORY: u64 = 64 << 20;

/// Tells the processes of the runtime from those of the command.
#[derive(Debug, Clone, Default)]
pub struct RuntimeProcesses {
    runtime: Option<Runtime>,
    first: Option<u32>,
}

impl RuntimeProcesses {
    /// Of a container whose first process is `first`.
    pub(crate) fn new(runtime: Runtime, first: Option<u32>) -> Self {
        Self {
            runtime: Some(runtime),
            first,
        }
    }

    /// Whether a process of the container belongs to the runtime.
    pub fn contains(&self, pid: u32) -> bool {
        match &self.runtime {
            Some(Runtime::Apptainer(_)) if Some(pid) == self.first => true,
            Some(runtime) => runtime.is_own(pid),
            None => false,
        }
    }
}

/// Family of an OCI runtime, by which its command line differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    Crun,
    Runc,
    Other,
}

impl Dialect {
    /// From what `--version` prints.
    pub fn of(version: &str) -> Self {
        match version.split_whitespace().next() {
            Some("crun") => Self::Crun,
            Some("runc") => Self::Runc,
            _ => Self::Other,
        }
    }
}

/// A runtime on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciProgram {
    pub path: PathBuf,
    pub dialect: Dialect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    Apptainer,
    Singularity,
}

impl Variant {
    pub fn name(self) -> &'static str {
        match self {
            Self::Apptainer => "apptainer",
            Self::Singularity => "singularity",
        }
    }

    /// Prefix of the names of its own variables.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Apptainer => "APPTAINER",
            Self::Singularity => "SINGULARITY",
        }
    }
}

/// Apptainer or Singularity on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApptainerProgram {
    pub path: PathBuf,
    pub variant: Variant,
    /// PATH in which it finds its own helpers.
    pub search_path: String,
}

/// Whether this is a helper of Apptainer beside the command, or our pid 1.
fn is_apptainer_process(pid: u32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe"));
    match program(&pid.to_string()) {
        Ok(path) if program("self").is_ok_and(|own| own == path) => true,
        Ok(path) => path
            .file_name()
            .is_some_and(|name| name == "starter" || name == "starter-suid"),
        // The kernel hides the program of a process with more privileges than ours.
        Err(_) => std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| matches!(name.trim_end(), "starter" | "starter-suid" | "appinit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_by_their_version() {
        for (text, expected) in [
            ("crun version 1.8.1\ncommit: f8a0", Dialect::Crun),
            ("runc version 1.1.5+ds1\nspec: 1.0.2-dev", Dialect::Runc),
            ("youki version 0.5", Dialect::Other),
            ("", Dialect::Other),
        ] {
            assert_eq!(Dialect::of(text), expected, "{text}");
        }
    }
}

//! The filter of system calls of a container: a default of our own ([`denied_syscalls`]), or a
//! profile of the site.
//!
//! Each engine applies it in its own way: `oci/build.rs` writes it into the runtime's
//! configuration, `docker/create.rs` into a security option. `builtin/build.rs` compiles it, and
//! `builtin/exec.rs` installs it. `apptainer/build.rs` gives Apptainer one half; `shim/pid1.rs`
//! installs the other before it starts.

mod bpf;
mod denied_syscalls;
mod profile_file;

use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSyscall, LinuxSyscallBuilder,
};
use serde::{Deserialize, Serialize};
use syscalls::Sysno;

pub(crate) use self::bpf::compile;
use self::denied_syscalls::{
    CONDITIONAL, Comparison, DENIED, HIDDEN, LAST_REVIEWED, NEEDED_FOR_CONTAINERS,
};
use crate::capabilities::Capabilities;

/// Which filter a container gets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub enum Seccomp {
    /// Ours, or that of the service.
    #[default]
    Default,
    /// None.
    Off,
    Profile(Box<SiteProfile>),
}

/// A profile in a file of the site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SiteProfile {
    pub path: PathBuf,
    /// As it is in the file, for a service that reads it itself.
    pub text: String,
    rules: LinuxSeccomp,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the seccomp profile {path} cannot be used: {reason}", path = path.display())]
pub struct ProfileError {
    path: PathBuf,
    reason: String,
}

impl Seccomp {
    /// Reads a profile: `linux.seccomp` of the OCI, or a profile for docker and podman, whose
    /// conditions may depend on the capabilities of the containers.
    pub fn read(path: &Path, capabilities: &Capabilities) -> Result<Self, ProfileError> {
        let failed = |reason: String| ProfileError {
            path: path.to_owned(),
            reason,
        };
        let path = path.canonicalize().map_err(|e| failed(e.to_string()))?;
        let text = std::fs::read_to_string(&path).map_err(|e| failed(e.to_string()))?;
        let rules = profile_file::parse(&text, capabilities).map_err(failed)?;
        compile(&rules).map_err(failed)?;
        Ok(Self::Profile(Box::new(SiteProfile { path, text, rules })))
    }

    /// The rules for a runtime that installs what it is given; `None` for no filter.
    pub(crate) fn rules(&self) -> Result<Option<LinuxSeccomp>, OciSpecError> {
        match self {
            Self::Default => default_rules().map(Some),
            Self::Off => Ok(None),
            Self::Profile(profile) => Ok(Some(profile.rules.clone())),
        }
    }
}

/// The filter in two halves, for a program that makes a container and installs a filter, but
/// answers every call that it denies with EPERM.
pub(crate) struct Halves {
    /// Installed before that program starts: all that it does not need itself.
    pub outer: Option<LinuxSeccomp>,
    /// Installed by that program.
    pub inner: Option<LinuxSeccomp>,
}

impl Seccomp {
    pub(crate) fn halves(&self) -> Result<Halves, OciSpecError> {
        if *self != Self::Default {
            return Ok(Halves {
                outer: None,
                inner: self.rules()?,
            });
        }
        // Without clone3 the C library of that program and of the container uses clone.
        let is_needed = |name: &String| NEEDED_FOR_CONTAINERS.contains(&name.as_str());
        let mut outer = default_rules()?;
        let mut inner = Vec::new();
        let mut entries = outer.syscalls().clone().unwrap_or_default();
        for entry in &mut entries {
            let (needed, others): (Vec<_>, Vec<_>) =
                entry.names().iter().cloned().partition(is_needed);
            let is_denied = entry.action() == LinuxSeccompAction::ScmpActErrno;
            if is_denied && !needed.is_empty() {
                let mut denied = entry.clone();
                denied.set_names(needed);
                inner.push(denied);
                entry.set_names(others);
            }
        }
        entries.push(
            LinuxSyscallBuilder::default()
                .names(NEEDED_FOR_CONTAINERS.map(str::to_owned))
                .action(LinuxSeccompAction::ScmpActAllow)
                .build()?,
        );
        outer.set_syscalls(Some(entries));
        let inner = LinuxSeccompBuilder::default()
            .default_action(LinuxSeccompAction::ScmpActAllow)
            .syscalls(inner)
            .build()?;
        Ok(Halves {
            outer: Some(outer),
            inner: Some(inner),
        })
    }
}

/// The table for this machine.
fn default_rules() -> Result<LinuxSeccomp, OciSpecError> {
    let entry = |names: Vec<String>, action, args: Option<&Comparison>| {
        let entry = LinuxSyscallBuilder::default().names(names).action(action);
        let entry = match action {
            LinuxSeccompAction::ScmpActErrno => entry.errno_ret(libc::EPERM as u32),
            _ => entry,
        };
        match args {
            Some(comparison) => entry.args(vec![argument(comparison)?]).build(),
            None => entry.build(),
        }
    };
    let denied = || DENIED.iter().flat_map(|(_, names)| names.iter().copied());
    let is_special = |name: &str| {
        denied().any(|other| other == name)
            || HIDDEN.contains(&name)
            || CONDITIONAL.iter().any(|call| call.name == name)
    };
    let allowed = Sysno::iter()
        .filter(|call| call.id() <= LAST_REVIEWED)
        .map(|call| call.name())
        .filter(|name| !is_special(name))
        .map(str::to_owned)
        .collect();
    let mut entries: Vec<LinuxSyscall> = vec![
        entry(allowed, LinuxSeccompAction::ScmpActAllow, None)?,
        entry(
            denied()
                .filter(|name| name.parse::<Sysno>().is_ok())
                .map(str::to_owned)
                .collect(),
            LinuxSeccompAction::ScmpActErrno,
            None,
        )?,
    ];
    for call in CONDITIONAL {
        let name = || vec![call.name.to_owned()];
        for comparison in call.allowed {
            entries.push(entry(
                name(),
                LinuxSeccompAction::ScmpActAllow,
                Some(comparison),
            )?);
        }
        for comparison in call.denied {
            entries.push(entry(
                name(),
                LinuxSeccompAction::ScmpActErrno,
                Some(comparison),
            )?);
        }
    }
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .default_errno_ret(libc::ENOSYS as u32)
        .syscalls(entries)
        .build()
}

fn argument(
    (index, operator, value, second): &Comparison,
) -> Result<LinuxSeccompArg, OciSpecError> {
    let argument = LinuxSeccompArgBuilder::default()
        .index(*index)
        .op(*operator)
        .value(*value);
    match second {
        Some(second) => argument.value_two(*second).build(),
        None => argument.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_table_is_a_system_call() {
        let conditional = CONDITIONAL.iter().map(|call| call.name);
        let denied = DENIED.iter().flat_map(|(_, names)| names.iter().copied());
        let mut seen = std::collections::HashSet::new();
        for name in denied.chain(conditional).chain(HIDDEN.iter().copied()) {
            assert!(
                name.parse::<Sysno>().is_ok() || name.parse::<syscalls::x86::Sysno>().is_ok(),
                "{name}"
            );
            assert!(seen.insert(name), "{name} is there twice");
        }
        assert!(DENIED.iter().all(|(reason, _)| !reason.is_empty()));
    }

    #[test]
    fn what_is_newer_than_the_table_is_not_allowed() {
        let rules = serde_json::to_value(default_rules().unwrap()).unwrap();
        let allowed = rules["syscalls"][0]["names"].as_array().unwrap();
        let has = |name: &str| allowed.iter().any(|other| other == name);
        assert!(has("read") && has("ptrace") && has("mbind") && has("removexattrat"));
        for name in [
            "open_tree_attr",
            "clone3",
            "clone",
            "socket",
            "mount",
            "unshare",
        ] {
            assert!(!has(name), "{name}");
        }
        assert_eq!(rules["defaultErrnoRet"], libc::ENOSYS);
    }
}

//! Reads a profile of the site: `linux.seccomp` of the OCI, or what docker and podman take. The
//! latter has conditions on the machine, which are decided here.

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompBuilder, LinuxSyscall,
    LinuxSyscallBuilder,
};
use serde::Deserialize;
use syscalls::Sysno;

use crate::capabilities::Capabilities;
use crate::kernel::{kernel_version, running_version};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Profile {
    default_action: LinuxSeccompAction,
    default_errno_ret: Option<u32>,
    /// The same by name, which podman adds.
    #[serde(rename = "defaultErrno")]
    _default_errno: Option<String>,
    #[serde(default)]
    architectures: Vec<Arch>,
    #[serde(default)]
    arch_map: Vec<Machine>,
    #[serde(default)]
    syscalls: Vec<Calls>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Machine {
    architecture: Arch,
    #[serde(default)]
    sub_architectures: Option<Vec<Arch>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Calls {
    #[serde(default)]
    names: Vec<String>,
    name: Option<String>,
    action: LinuxSeccompAction,
    errno_ret: Option<u32>,
    #[serde(rename = "errno")]
    _errno: Option<String>,
    #[serde(default)]
    args: Option<Vec<LinuxSeccompArg>>,
    #[serde(rename = "comment")]
    _comment: Option<String>,
    #[serde(default)]
    includes: Option<Condition>,
    #[serde(default)]
    excludes: Option<Condition>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Condition {
    #[serde(default)]
    arches: Option<Vec<String>>,
    #[serde(default)]
    caps: Option<Vec<String>>,
    min_kernel: Option<String>,
}

pub fn parse(text: &str, capabilities: &Capabilities) -> Result<LinuxSeccomp, String> {
    let profile: Profile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let is_list_of_denials = profile.default_action == LinuxSeccompAction::ScmpActAllow;
    let mut entries = Vec::new();
    for calls in profile.syscalls {
        if !applies(&calls, capabilities) {
            continue;
        }
        let entry = entry(calls)?;
        let unknown = entry.names().iter().find(|name| !is_known(name));
        // A name that is not allowed for being unknown does no harm.
        if let Some(name) = unknown.filter(|_| is_list_of_denials) {
            return Err(format!("\"{name}\" is not a known system call"));
        }
        entries.push(entry);
    }
    let architectures = match (profile.architectures, profile.arch_map) {
        (given, machines) if machines.is_empty() => given,
        (given, machines) => given.into_iter().chain(of_this_machine(machines)).collect(),
    };
    let rules = LinuxSeccompBuilder::default()
        .default_action(profile.default_action)
        .architectures(architectures)
        .syscalls(entries);
    match profile.default_errno_ret {
        Some(errno) => rules.default_errno_ret(errno).build(),
        None => rules.build(),
    }
    .map_err(|error| error.to_string())
}

fn entry(calls: Calls) -> Result<LinuxSyscall, String> {
    let names: Vec<String> = calls.names.into_iter().chain(calls.name).collect();
    let arguments = calls.args.unwrap_or_default();
    // Runtimes differ in what several comparisons of one argument mean.
    let is_repeated = |(at, argument): (usize, &LinuxSeccompArg)| {
        arguments[..at]
            .iter()
            .any(|earlier| earlier.index() == argument.index())
    };
    if arguments.iter().enumerate().any(is_repeated) {
        let name = names.first().map_or("", String::as_str);
        return Err(format!(
            "the entry of \"{name}\" compares one argument twice; make two entries of it"
        ));
    }
    let entry = LinuxSyscallBuilder::default()
        .names(names)
        .action(calls.action);
    let entry = match calls.errno_ret {
        Some(errno) => entry.errno_ret(errno),
        None => entry,
    };
    match arguments.is_empty() {
        true => entry.build(),
        false => entry.args(arguments).build(),
    }
    .map_err(|error| error.to_string())
}

fn is_known(name: &str) -> bool {
    name.parse::<Sysno>().is_ok() || name.parse::<syscalls::x86::Sysno>().is_ok()
}

fn applies(calls: &Calls, capabilities: &Capabilities) -> bool {
    let has = |name: &String| capabilities.has(name);
    let is_here = |name: &String| go_architecture() == name;
    let is_included = calls.includes.as_ref().is_none_or(|only| {
        only.arches
            .as_ref()
            .is_none_or(|all| all.is_empty() || all.iter().any(is_here))
            && only.caps.as_ref().is_none_or(|all| all.iter().all(has))
            && only.min_kernel.as_deref().is_none_or(is_kernel_at_least)
    });
    let is_excluded = calls.excludes.as_ref().is_some_and(|not| {
        not.arches
            .as_ref()
            .is_some_and(|all| all.iter().any(is_here))
            || not.caps.as_ref().is_some_and(|all| all.iter().any(has))
            || not.min_kernel.as_deref().is_some_and(is_kernel_at_least)
    });
    is_included && !is_excluded
}

/// This machine's name in Go, which these profiles use.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn of_this_machine(machines: Vec<Machine>) -> Vec<Arch> {
    let here = match std::env::consts::ARCH {
        "aarch64" => Arch::ScmpArchAarch64,
        _ => Arch::ScmpArchX86_64,
    };
    let found = machines
        .into_iter()
        .find(|machine| machine.architecture == here);
    let below = found.and_then(|machine| machine.sub_architectures);
    std::iter::once(here)
        .chain(below.into_iter().flatten())
        .collect()
}

fn is_kernel_at_least(version: &str) -> bool {
    running_version() >= kernel_version(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_docker_s_profiles_are_decided() {
        let text = r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
            "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]},
                        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]}],
            "syscalls": [
              {"names": ["read", "not_of_this_kernel"], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "", "includes": {}, "excludes": {}},
              {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
              {"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_CHROOT"]}},
              {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN"], "arches": ["s390"]},
               "args": [{"index": 0, "value": 2114060288, "op": "SCMP_CMP_MASKED_EQ"}]},
              {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
              {"names": ["getpid"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "99.0"}},
              {"name": "arch_prctl", "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["riscv64"]}}]}"#;
        let rules = parse(text, &Capabilities::default()).unwrap();
        let names: Vec<&str> = rules
            .syscalls()
            .iter()
            .flatten()
            .map(|entry| entry.names()[0].as_str())
            .collect();
        assert_eq!(names, ["read", "chroot", "clone", "ptrace"]);
        assert_eq!(rules.architectures().as_ref().unwrap().len(), 2);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, expected) in [
            ("{", "EOF"),
            (r#"{"defaultAction": "SCMP_ACT_MAYBE"}"#, "SCMP_ACT_MAYBE"),
            (
                r#"{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}"#,
                "listenerPath",
            ),
            (
                r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["moutn"], "action": "SCMP_ACT_ERRNO"}]}"#,
                "\"moutn\"",
            ),
            (
                r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["socket"], "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_NE"}, {"index": 0, "value": 2, "op": "SCMP_CMP_NE"}]}]}"#,
                "\"socket\" compares",
            ),
        ] {
            let error = parse(text, &Capabilities::default()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}

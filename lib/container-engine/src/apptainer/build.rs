//! Runs the container by Apptainer inside the shim: creates mount points and the command line.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use oci_spec::runtime::LinuxSeccomp;
use pathrs::Root;

use super::dev;
use crate::error::cannot_create;
use crate::shim::pid1::{LaunchMethod, Pid1Config};
use crate::shim::pid1_client::Pid1Client;
use crate::shim::protocol::CreateSpec;
use crate::shim::runtime::ApptainerProgram;
use crate::shim::sandbox::{CreatedResources, Sandbox};
use crate::shim::{InitProcess, precheck};
use crate::{Bind, StartError};

/// Mounts that Apptainer makes in every container.
const OWN_MOUNTS: [&str; 3] = ["/proc", "/sys", "/dev"];

pub fn build(
    program: &ApptainerProgram,
    spec: &CreateSpec,
    sandbox: &Sandbox,
    stdio: [OwnedFd; 3],
    created: &CreatedResources,
) -> Result<Box<dyn InitProcess>, StartError> {
    let command_file = precheck::check_command(sandbox)?;
    let mut binds: Vec<Bind> = sandbox.binds.clone();
    // Outer mounts come before those inside them.
    binds.sort_by_key(|bind| bind.target.components().count());
    let root = Root::open(&sandbox.root).map_err(|e| cannot_create("its root", e))?;
    for dir in OWN_MOUNTS {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        root.mkdir_all(dir, &mode)
            .map_err(|e| cannot_create(&format!("the mount point {dir}"), e))?;
    }
    binds.extend(spec.gpus.devices.iter().map(|node| Bind {
        host: node.path.clone(),
        target: node.path.clone(),
        writable: true,
    }));
    dev::move_nodes(&spec.gpus.devices, &spec.dir)?;
    let filter = spec
        .confinement
        .seccomp
        .halves()
        .map_err(|e| cannot_create("its filter of system calls", e))?;
    let profile = filter.inner.as_ref();
    let profile = profile
        .map(|rules| write_profile(&spec.dir, rules))
        .transpose();
    let profile = profile.map_err(|e| cannot_create("its filter of system calls", e))?;
    let method = LaunchMethod::Command {
        program: program.path.clone(),
        arguments: arguments(spec.privileged, profile.as_deref(), sandbox, &binds),
        environment: environment(program, &sandbox.environment),
        seccomp: filter.outer,
        command_file,
    };
    let group = created.groups.as_ref().map(|groups| &groups.inside);
    let client = Pid1Client::spawn(&Pid1Config { method }, stdio, group)?;
    Ok(Box::new(client))
}

/// The filter as a file, which Apptainer reads and installs.
fn write_profile(dir: &Path, rules: &LinuxSeccomp) -> io::Result<PathBuf> {
    let path = dir.join("seccomp.json");
    fs::write(&path, serde_json::to_vec(rules)?)?;
    Ok(path)
}

fn arguments(
    privileged: bool,
    profile: Option<&Path>,
    sandbox: &Sandbox,
    binds: &[Bind],
) -> Vec<OsString> {
    let mut all: Vec<OsString> = [
        "--silent",
        "exec",
        "--containall",
        "--cleanenv",
        "--no-home",
        "--writable",
        // The image's own /tmp is writable, and larger.
        "--no-mount",
        "tmp,bind-paths",
    ]
    .map(OsString::from)
    .to_vec();
    if privileged {
        all.push("--no-privs".into());
    }
    if let Some(path) = profile {
        let mut value = OsString::from("seccomp:");
        value.push(path);
        all.extend(["--security".into(), value]);
    }
    for bind in binds {
        all.push("--mount".into());
        all.push(mount(bind));
    }
    all.extend(["--pwd".into(), OsString::from(&sandbox.cwd)]);
    all.push(sandbox.root.clone().into());
    all.extend(sandbox.arguments.iter().map(OsString::from));
    all
}

/// One line of comma-separated values, each quoted.
fn mount(bind: &Bind) -> OsString {
    let quoted = |name: &str, path: &Path| {
        let mut field = OsString::from(format!("\"{name}="));
        let text = path.as_os_str().to_string_lossy().replace('"', "\"\"");
        field.push(text);
        field.push("\"");
        field
    };
    let mut line = OsString::from("type=bind,");
    line.push(quoted("src", &bind.host));
    line.push(",");
    line.push(quoted("dst", &bind.target));
    if !bind.writable {
        line.push(",ro");
    }
    line
}

/// The program's own variables, and the container's with the program's prefix.
fn environment(program: &ApptainerProgram, container: &[String]) -> Vec<(String, String)> {
    let prefix = program.variant.prefix();
    let mut all = vec![
        ("PATH".to_owned(), program.search_path.clone()),
        // Directory of its configuration.
        ("HOME".to_owned(), "/".to_owned()),
        // Values are taken literally, not as shell words.
        (format!("{prefix}_NO_EVAL"), "1".to_owned()),
    ];
    let variables = container.iter().filter_map(|v| v.split_once('='));
    all.extend(
        variables
            // HOME cannot be set, and asking for it brings a warning.
            .filter(|(name, _)| *name != "HOME")
            .map(|(name, value)| (format!("{prefix}ENV_{name}"), value.to_owned())),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apptainer::Variant;

    #[test]
    fn mounts_are_quoted_for_any_path() {
        for (host, target, writable, expected) in [
            ("/a", "/b", true, r#"type=bind,"src=/a","dst=/b""#),
            (
                "/a,b",
                "/c:d",
                false,
                r#"type=bind,"src=/a,b","dst=/c:d",ro"#,
            ),
            ("/q\"q", "/b", false, r#"type=bind,"src=/q""q","dst=/b",ro"#),
        ] {
            let bind = Bind {
                host: host.into(),
                target: target.into(),
                writable,
            };
            assert_eq!(mount(&bind), *expected);
        }
    }

    #[test]
    fn nothing_of_this_process_s_environment_goes_in() {
        let program = ApptainerProgram {
            path: "/usr/bin/apptainer".into(),
            variant: Variant::Apptainer,
            search_path: "/usr/bin".to_owned(),
        };
        let container = [
            "PATH=/bin".to_owned(),
            "HOME=/x".to_owned(),
            "A=b=c".to_owned(),
        ];
        let got = environment(&program, &container);
        let names: Vec<&str> = got.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "PATH",
                "HOME",
                "APPTAINER_NO_EVAL",
                "APPTAINERENV_PATH",
                "APPTAINERENV_A"
            ]
        );
        assert_eq!(got[4].1, "b=c");
    }
}

//! Makes one container inside the keeper: mounts, groups, description, and libcontainer's work.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::network::link::LinkClient;
use libcontainer::network::wrapper::create_network_client;
use libcontainer::syscall::syscall::SyscallType;
use nix::sched::{CloneFlags, unshare};
use pathrs::Root;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Resource, getrlimit};

use super::groups::{self, Groups};
use super::launch::Launcher;
use super::process;
use super::protocol::Plan;
use super::rootfs::{self, RootFs};
use super::spec::{Facts, describe};
use super::user;
use crate::engine::{Bind, Network, StartError};

/// What exists of the container so far, so that all of it can be removed at any point.
#[derive(Default)]
pub struct Made {
    pub groups: Option<Groups>,
    pub rootfs: Option<RootFs>,
}

pub fn build(
    plan: &Plan,
    stdio: [OwnedFd; 3],
    report: OwnedFd,
    made: &mut Made,
) -> Result<Container, StartError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| runtime("a mount namespace", e))?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .map_err(|e| runtime("a private view of mounts", e))?;

    let groups = groups::prepare(&plan.leaf).map_err(|e| runtime("its control group", e))?;
    let groups = made.groups.insert(groups);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&plan.dir)
        .map_err(|e| runtime(&format!("directory {}", plan.dir.display()), e))?;
    let root = rootfs::mount_layers(&plan.layers, &plan.dir, &plan.spare_dir)?;
    let root = made.rootfs.insert(root);

    let mut identity = user::identity(&root.path, plan.image.user.as_deref())?;
    identity.groups.extend(plan.gpus.groups());
    let hostname = match plan.network {
        Network::None => plan.name.clone(),
        // Programs look up their own name, which the node's /etc/hosts knows.
        Network::Host => rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
    };
    let arguments = process::arguments(&plan.image, &plan.command)?;
    let mut environment = process::environment(
        &plan.image,
        &hostname,
        &identity.home,
        &plan.gpus.environment,
        &plan.environment,
    );
    if let Some(dir) = &plan.gpus.library_dir {
        put_first_in_library_path(&mut environment, dir);
    }
    let (cwd, asked) = process::working_directory(&plan.image, plan.cwd.as_deref());
    if !asked {
        make_working_directory(&root.path, &cwd, &plan.binds);
    }

    match plan.network {
        Network::None => private_network().map_err(|e| runtime("a network of its own", e))?,
        Network::Host => {}
    }
    let mut binds = network_files(plan, &hostname).map_err(|e| runtime("its /etc/hosts", e))?;
    binds.extend(plan.gpus.binds.iter().cloned());
    binds.extend(plan.binds.iter().cloned());

    let spec = describe(&Facts {
        rootfs: &root.path,
        hostname: &hostname,
        arguments: &arguments,
        identity: &identity,
        binds: &binds,
        devices: &plan.gpus.devices,
        limits: &plan.limits,
        quota_above: groups.quota_above,
        enforceable: groups.enforceable,
        group: &groups.inside,
        group_path: &groups::path_inside(&plan.leaf),
        hard_files: getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20),
    })
    .map_err(|e| runtime("its description", e))?;
    let bundle = plan.dir.join("bundle");
    write_bundle(&bundle, &spec).map_err(|e| runtime("its description", e))?;

    let launcher = Launcher {
        cwd,
        arguments,
        environment,
        user: identity.uid.to_string(),
        foreign_formats: foreign_formats(),
        report: Rc::new(report),
    };
    let [stdin, stdout, stderr] = stdio;
    ContainerBuilder::new(plan.name.clone(), SyscallType::default())
        .with_executor(launcher)
        .with_stdin(stdin)
        .with_stdout(stdout)
        .with_stderr(stderr)
        .with_root_path(plan.dir.join("state"))
        .and_then(ContainerBuilder::validate_id)
        .and_then(|builder| {
            builder
                .as_init(&bundle)
                .with_systemd(false)
                .with_detach(true)
                .build()
        })
        .map_err(|error| StartError::Runtime {
            reason: chain(&error),
        })
}

fn runtime(what: &str, error: impl std::fmt::Display) -> StartError {
    StartError::Runtime {
        reason: format!("{what} could not be made: {error}"),
    }
}

/// An error with its causes, each said once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// A network namespace of the keeper's own, with a loopback interface that works.
fn private_network() -> Result<(), Box<dyn std::error::Error>> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let mut links = LinkClient::new(create_network_client())?;
    let loopback = links.get_by_name("lo")?;
    links.set_up(loopback.header.index)?;
    Ok(())
}

/// Docker makes the image's WORKDIR if the image itself does not have it.
fn make_working_directory(rootfs: &Path, cwd: &str, binds: &[Bind]) {
    if binds.iter().any(|b| Path::new(cwd).starts_with(&b.target)) {
        return;
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    if let Ok(root) = Root::open(rootfs) {
        // If it cannot be made, entering it says why.
        let _ = root.mkdir_all(cwd, &mode);
    }
}

/// /etc/hosts of a container without network names itself; with the node's network it has the node's files.
fn network_files(plan: &Plan, hostname: &str) -> io::Result<Vec<Bind>> {
    let taken = |target: &str| plan.binds.iter().any(|b| b.target == Path::new(target));
    let mut files: Vec<(PathBuf, &str)> = Vec::new();
    match plan.network {
        Network::Host => {
            files.push(("/etc/resolv.conf".into(), "/etc/resolv.conf"));
            files.push(("/etc/hosts".into(), "/etc/hosts"));
        }
        Network::None => {
            let hosts = plan.dir.join("hosts");
            fs::write(
                &hosts,
                format!(
                    "127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n"
                ),
            )?;
            files.push((hosts, "/etc/hosts"));
        }
    }
    Ok(files
        .into_iter()
        .filter(|(host, target)| host.exists() && !taken(target))
        .map(|(host, target)| Bind {
            host,
            target: target.into(),
            writable: false,
        })
        .collect())
}

/// Whether this node runs programs of other formats, say of other processors by emulation.
fn foreign_formats() -> bool {
    fs::read_dir("/proc/sys/fs/binfmt_misc")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| entry.file_name() != "register" && entry.file_name() != "status")
}

fn put_first_in_library_path(environment: &mut Vec<String>, dir: &str) {
    const NAME: &str = "LD_LIBRARY_PATH";
    let value = match process::variable(environment, NAME) {
        Some(rest) if !rest.is_empty() => format!("{NAME}={dir}:{rest}"),
        _ => format!("{NAME}={dir}"),
    };
    environment.retain(|v| !v.starts_with("LD_LIBRARY_PATH="));
    environment.push(value);
}

/// libcontainer takes the description from a file. It holds arguments, so nobody else may read it.
fn write_bundle(
    bundle: &Path,
    spec: &libcontainer::oci_spec::runtime::Spec,
) -> Result<(), Box<dyn std::error::Error>> {
    fs::DirBuilder::new().mode(0o700).create(bundle)?;
    let mut file = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(bundle.join("config.json"))?;
    file.write_all(&serde_json::to_vec(spec)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_libraries_come_before_the_image_s() {
        for (before, after) in [
            (&["A=b"][..], "LD_LIBRARY_PATH=/gpu"),
            (&["LD_LIBRARY_PATH=/x:/y"], "LD_LIBRARY_PATH=/gpu:/x:/y"),
            (&["LD_LIBRARY_PATH="], "LD_LIBRARY_PATH=/gpu"),
        ] {
            let mut environment: Vec<String> = before.iter().map(|s| (*s).to_owned()).collect();
            put_first_in_library_path(&mut environment, "/gpu");
            let all: Vec<_> = environment
                .iter()
                .filter(|v| v.starts_with("LD_LIBRARY_PATH="))
                .collect();
            assert_eq!(all, [after]);
        }
    }
}

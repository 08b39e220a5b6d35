//! Sets the scene for a container inside the keeper: namespaces, control group, root file system, and what the
//! first process is to be. Whatever then makes the container finds everything here.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use libcontainer::network::link::LinkClient;
use libcontainer::network::wrapper::create_network_client;
use nix::sched::{CloneFlags, unshare};
use pathrs::Root;
use rustix::mount::{MountPropagationFlags, mount_change};

use super::groups::{self, Groups};
use super::process;
use super::protocol::Plan;
use super::rootfs::{self, RootFs};
use super::user::{self, Identity};
use crate::engine::{Bind, Network, StartError};

/// What exists of the container so far, so that all of it can be removed at any point.
#[derive(Default)]
pub struct Made {
    pub groups: Option<Groups>,
    pub rootfs: Option<RootFs>,
    /// A file system in memory for the runtime's files.
    pub memory: Option<PathBuf>,
}

/// What the container is made from.
pub struct Scene {
    pub root: PathBuf,
    pub identity: Identity,
    pub hostname: String,
    pub arguments: Vec<String>,
    pub environment: Vec<String>,
    pub cwd: String,
    pub binds: Vec<Bind>,
}

pub fn set(plan: &Plan, made: &mut Made) -> Result<Scene, StartError> {
    if !plan.privileged {
        user_namespace().map_err(|e| runtime("a user namespace", e))?;
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| runtime("a mount namespace", e))?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .map_err(|e| runtime("a private view of mounts", e))?;

    if plan.privileged {
        let groups = groups::prepare(&plan.leaf).map_err(|e| runtime("its control group", e))?;
        made.groups = Some(groups);
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&plan.dir)
        .map_err(|e| runtime(&format!("directory {}", plan.dir.display()), e))?;
    let root = rootfs::mount_layers(&plan.layers, &plan.dir, &plan.spare_dir, plan.privileged)?;
    let root = made.rootfs.insert(root).path.clone();

    let mut identity = user::identity(&root, plan.image.user.as_deref())?;
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
        make_working_directory(&root, &cwd, &plan.binds);
    }

    match plan.network {
        Network::None => private_network().map_err(|e| runtime("a network of its own", e))?,
        Network::Host => {}
    }
    let mut binds = network_files(plan, &hostname).map_err(|e| runtime("its /etc/hosts", e))?;
    binds.extend(plan.gpus.binds.iter().cloned());
    binds.extend(plan.binds.iter().cloned());
    Ok(Scene {
        root,
        identity,
        hostname,
        arguments,
        environment,
        cwd,
        binds,
    })
}

pub fn runtime(what: &str, error: impl std::fmt::Display) -> StartError {
    StartError::Runtime {
        reason: format!("{what} could not be made: {error}"),
    }
}

/// One in which this user is root and nobody else exists. It lets him mount, and gives him nothing outside.
fn user_namespace() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // Without giving up setgroups no group may be mapped.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
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

fn put_first_in_library_path(environment: &mut Vec<String>, dir: &str) {
    const NAME: &str = "LD_LIBRARY_PATH";
    let value = match process::variable(environment, NAME) {
        Some(rest) if !rest.is_empty() => format!("{NAME}={dir}:{rest}"),
        _ => format!("{NAME}={dir}"),
    };
    environment.retain(|v| !v.starts_with("LD_LIBRARY_PATH="));
    environment.push(value);
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

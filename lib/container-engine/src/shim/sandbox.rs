//! Creates the sandbox of a container inside the shim: namespaces, control group, root file system,
//! and the parameters of the first process. The runtime creates the container from these.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use host_state::file::create_private_dir;
use libcontainer::network::link::LinkClient;
use libcontainer::network::wrapper::create_network_client;
use nix::sched::{CloneFlags, unshare};
use pathrs::Root;
use rustix::fs::{FileType, Gid, Uid, fchown, fstat};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::cgroups::{self, ContainerCgroups};
use super::id_map::IdMap;
use super::mapped_mounts::MappedMounts;
use super::mount_points;
use super::process_spec;
use super::protocol::CreateSpec;
use super::rootfs::{self, RootFs};
use super::runtime::Runtime;
use super::user::{self, Identity};
use super::user_namespace::{OwnerOfNewFiles, UserNamespace};
use crate::error::cannot_create;
use crate::{Bind, ContainerUsers, Network, StartError};

/// Everything created so far, so that it can be removed at any point.
#[derive(Default)]
pub struct CreatedResources {
    pub groups: Option<ContainerCgroups>,
    pub rootfs: Option<RootFs>,
    /// Mount point of a tmpfs with the runtime's files.
    pub memory: Option<PathBuf>,
    pub mapped: Option<MappedMounts>,
    pub users: ContainerUsers,
}

/// Users of the container that are not those of the node.
pub struct OwnUsers {
    pub namespace: UserNamespace,
    /// The /sys of the container's network.
    pub sysfs: PathBuf,
}

/// Everything the runtime needs to create the container.
pub struct Sandbox {
    pub root: PathBuf,
    pub identity: Identity,
    pub hostname: String,
    pub arguments: Vec<String>,
    pub environment: Vec<String>,
    pub cwd: String,
    pub binds: Vec<Bind>,
    pub own_users: Option<OwnUsers>,
}

impl Sandbox {
    /// Lets the container's user open its own streams by name, as in /dev/stdout.
    pub fn give_pipes(&self, stdio: &[OwnedFd]) -> io::Result<()> {
        let Some(users) = &self.own_users else {
            return Ok(());
        };
        let map = users.namespace.map;
        let user = map.outside(self.identity.uid).map(Uid::from_raw);
        let group = map.outside(self.identity.gid).map(Gid::from_raw);
        for file in stdio {
            if FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::Fifo {
                fchown(file, user, group)?;
            }
        }
        Ok(())
    }
}

pub fn create(spec: &CreateSpec, created: &mut CreatedResources) -> Result<Sandbox, StartError> {
    if spec.delegated {
        let groups = cgroups::prepare_delegated(&spec.cgroup_name, &spec.limits)
            .map_err(|e| cannot_create("its control group", e))?;
        created.groups = Some(groups);
    }
    if !spec.privileged {
        user_namespace().map_err(|e| cannot_create("a user namespace", e))?;
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| cannot_create("a mount namespace", e))?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .map_err(|e| cannot_create("a private view of mounts", e))?;

    if spec.privileged {
        let groups = cgroups::prepare(&spec.cgroup_name)
            .map_err(|e| cannot_create("its control group", e))?;
        created.groups = Some(groups);
    }
    create_private_dir(&spec.dir)
        .map_err(|e| cannot_create(&format!("directory {}", spec.dir.display()), e))?;
    let hostname = match spec.network {
        Network::None => spec.name.clone(),
        // Programs look up their own name, which the node's /etc/hosts knows.
        Network::Host => host_state::node_name(),
    };
    let mut binds =
        network_files(spec, &hostname).map_err(|e| cannot_create("its /etc/hosts", e))?;
    binds.extend(spec.gpus.binds.iter().cloned());
    binds.extend(spec.binds.iter().cloned());
    match spec.network {
        Network::None => private_network().map_err(|e| cannot_create("a network of its own", e))?,
        Network::Host => {}
    }
    let (root, binds, own_users) = mount_files(spec, binds, created)?;
    let owner = own_users.as_ref().map(|users| users.namespace.map.root());
    let owner = owner.map(OwnerOfNewFiles::new).transpose();
    let owner = owner.map_err(|e| cannot_create("the owner of its mount points", e))?;

    let mut identity = user::identity(&root, spec.image.user.as_deref())?;
    identity.groups.extend(spec.gpus.groups());
    let arguments = process_spec::arguments(&spec.image, &spec.command)?;
    let mut environment = process_spec::environment(
        &spec.image,
        &hostname,
        &identity.home,
        &spec.gpus.environment,
        &spec.environment,
    );
    if let Some(dir) = &spec.gpus.library_dir {
        put_first_in_library_path(&mut environment, dir);
    }
    let (cwd, is_requested) = process_spec::working_directory(&spec.image, spec.cwd.as_deref());
    if !is_requested {
        make_working_directory(&root, &cwd, &spec.binds);
    }

    mount_points::make(&root, &binds)?;
    drop(owner);
    Ok(Sandbox {
        root,
        identity,
        hostname,
        arguments,
        environment,
        cwd,
        binds,
        own_users,
    })
}

/// Mounts the root file system: with users of the container's own if they are wanted and can be
/// had.
fn mount_files(
    spec: &CreateSpec,
    binds: Vec<Bind>,
    created: &mut CreatedResources,
) -> Result<(PathBuf, Vec<Bind>, Option<OwnUsers>), StartError> {
    let namespace = match wants_own_users(spec) {
        Ok(true) => UserNamespace::create(IdMap::choose(fastrand::u32(..)))
            .map(Some)
            .map_err(|error| format!("there is no user namespace: {error}")),
        Ok(false) => Ok(None),
        Err(reason) => Err(reason.to_owned()),
    };
    let made = namespace.and_then(|namespace| match namespace {
        Some(namespace) => mount_mapped_files(spec, &binds, &namespace)
            .map(|(root, mapped)| Some((root, mapped, namespace))),
        None => Ok(None),
    });
    let reason = match made {
        Ok(Some((root, mapped, namespace))) => {
            created.users = ContainerUsers::Own {
                root: namespace.map.root(),
            };
            let (binds, sysfs) = (mapped.binds.clone(), mapped.sysfs.clone());
            created.mapped = Some(mapped);
            let root = created.rootfs.insert(root).path.clone();
            return Ok((root, binds, Some(OwnUsers { namespace, sysfs })));
        }
        Ok(None) => None,
        Err(reason) => Some(reason),
    };
    created.users = ContainerUsers::OfNode { reason };
    let root = rootfs::mount_layers(&spec.layers, &spec.dir, &spec.spare_dir, spec.privileged)?;
    let root = created.rootfs.insert(root).path.clone();
    Ok((root, binds, None))
}

/// The error says why the container cannot have users of its own.
fn wants_own_users(spec: &CreateSpec) -> Result<bool, &'static str> {
    match (&spec.runtime, spec.user_namespace && spec.privileged) {
        (_, false) | (Runtime::Apptainer(_), _) => Ok(false),
        (Runtime::Library | Runtime::Oci(_), true) if !spec.gpus.is_any() => Ok(true),
        // Groups of the node may use them.
        _ => Err("it has GPUs"),
    }
}

fn mount_mapped_files(
    spec: &CreateSpec,
    binds: &[Bind],
    namespace: &UserNamespace,
) -> Result<(RootFs, MappedMounts), String> {
    let mapped = MappedMounts::make(&spec.mounts_dir, namespace, &spec.layers, binds)?;
    let root = rootfs::mount_mapped_layers(&mapped, &spec.dir, &spec.spare_dir);
    let checked = root.and_then(|root| {
        let user = user::identity(&root.path, spec.image.user.as_deref());
        // Without a user, the container is refused later.
        let ids = user.into_iter().flat_map(|user| {
            let groups = user.groups.into_iter();
            groups.chain([user.uid, user.gid])
        });
        for id in ids {
            if namespace.map.outside(id).is_none() {
                let _ = root.unmount();
                return Err(format!("user or group {id} of its image is too large"));
            }
        }
        // The limit of processes of one user never held for root. The control group limits them.
        let all = Rlimit {
            current: None,
            maximum: None,
        };
        let _ = setrlimit(Resource::Nproc, all);
        Ok(root)
    });
    match checked {
        Ok(root) => Ok((root, mapped)),
        Err(reason) => {
            // What stays mounted ends with this process.
            let _ = mapped.unmount();
            Err(reason)
        }
    }
}

/// Enters a user namespace in which this user is root and the only user. It allows mounts, and
/// gives no rights outside.
fn user_namespace() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // The kernel maps a group only after setgroups is denied.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Enters a network namespace with a working loopback interface. As in Docker's, every user may
/// listen on any port and send pings: rights of root for that do not hold in a user namespace.
fn private_network() -> Result<(), Box<dyn std::error::Error>> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    for (name, value) in [
        ("ip_unprivileged_port_start", "0"),
        ("ping_group_range", "0 2147483647"),
    ] {
        // A kernel without the setting has stricter rules.
        let _ = fs::write(Path::new("/proc/sys/net/ipv4").join(name), value);
    }
    let mut links = LinkClient::new(create_network_client())?;
    let loopback = links.get_by_name("lo")?;
    links.set_up(loopback.header.index)?;
    Ok(())
}

/// Creates the image's WORKDIR if the image lacks it, as Docker does.
fn make_working_directory(rootfs: &Path, cwd: &str, binds: &[Bind]) {
    if binds.iter().any(|b| Path::new(cwd).starts_with(&b.target)) {
        return;
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    if let Ok(root) = Root::open(rootfs) {
        // If this fails, entering the directory reports why.
        let _ = root.mkdir_all(cwd, &mode);
    }
}

/// /etc/hosts and resolv.conf: the node's with the node's network, else a file with the container's
/// own name.
fn network_files(spec: &CreateSpec, hostname: &str) -> io::Result<Vec<Bind>> {
    let taken = |target: &str| spec.binds.iter().any(|b| b.target == Path::new(target));
    let files: Vec<(PathBuf, &str)> = match spec.network {
        Network::Host => ["/etc/resolv.conf", "/etc/hosts"]
            .map(|file| (file.into(), file))
            .into(),
        Network::None => {
            let hosts = spec.dir.join("hosts");
            let text = format!(
                "127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n"
            );
            fs::write(&hosts, text)?;
            vec![(hosts, "/etc/hosts")]
        }
    };
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
    let value = match process_spec::variable(environment, NAME) {
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

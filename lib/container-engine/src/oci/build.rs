//! Creates the container by an external OCI runtime, inside the shim: writes the bundle and starts
//! pid 1.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use host_state::file::create_new_private;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, getrlimit};

use crate::StartError;
use crate::error::cannot_create;
use crate::shim::oci_bundle::Bundle;
use crate::shim::oci_spec::{self, SpecInput, SpecUsers, Unprivileged};
use crate::shim::pid1::{LaunchMethod, Pid1Config};
use crate::shim::pid1_client::Pid1Client;
use crate::shim::protocol::CreateSpec;
use crate::shim::runtime::{Dialect, OciProgram};
use crate::shim::sandbox::{CreatedResources, Sandbox};
use crate::shim::{InitProcess, cgroups, precheck};
use cgroup::Cgroup;
use cgroup::limit_support::LimitSupport;

pub fn build(
    program: &OciProgram,
    spec: &CreateSpec,
    mut sandbox: Sandbox,
    stdio: [OwnedFd; 3],
    created: &mut CreatedResources,
) -> Result<Box<dyn InitProcess>, StartError> {
    precheck::check_command(&sandbox)?;
    let nested = !spec.privileged && map_image_user(&mut sandbox, program.dialect);
    let bundle = spec.dir.join("bundle");
    fs::create_dir(&bundle).map_err(|e| cannot_create("its description", e))?;
    // The specification holds the environment with its tokens, so it is never on a disk.
    mount("tmpfs", &bundle, "tmpfs", MountFlags::NODEV, c"mode=700")
        .map_err(|e| cannot_create("a file system in memory", e))?;
    created.memory = Some(bundle.clone());

    let no_group = Cgroup::default();
    let rules = spec
        .confinement
        .seccomp
        .rules()
        .map_err(|e| cannot_create("its filter of system calls", e))?;
    // The limits of a delegated group are set already.
    let groups = created.groups.as_ref().filter(|_| spec.privileged);
    let delegated = created.groups.as_ref().filter(|_| spec.delegated);
    // runc moves the container out of the group that it is started in, unless it is told a group.
    let (pid1_group, group_path) = match (groups, delegated, program.dialect) {
        (Some(_), _, _) => (None, Some(cgroups::path_inside(&spec.cgroup_name))),
        (None, Some(made), Dialect::Crun) => (Some(&made.inside), None),
        (None, Some(made), Dialect::Runc | Dialect::Other) => (None, made.path_below_root()),
        (None, None, _) => (None, None),
    };
    let oci_spec = oci_spec::build(&SpecInput {
        rootfs: &sandbox.root,
        hostname: &sandbox.hostname,
        arguments: &sandbox.arguments,
        environment: &sandbox.environment,
        cwd: &sandbox.cwd,
        identity: &sandbox.identity,
        binds: &sandbox.binds,
        gpus: &spec.gpus,
        network: spec.network,
        capabilities: &spec.confinement.capabilities,
        seccomp: rules.as_ref(),
        limits: &spec.limits,
        parent_quota: groups.and_then(|g| g.parent_quota),
        supported: groups.map_or(LimitSupport::NOTHING, |g| g.supported),
        group: groups.map_or(&no_group, |g| &g.inside),
        group_path: group_path.as_deref(),
        hard_files: getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20),
        unprivileged: (!spec.privileged).then_some(Unprivileged { nested }),
        own_users: sandbox.own_users.as_ref().map(|users| SpecUsers {
            map: users.namespace.map,
            namespace: None,
            sysfs: &users.sysfs,
        }),
    })
    .map_err(|e| cannot_create("its description", e))?;
    serde_json::to_vec(&oci_spec)
        .map_err(io::Error::from)
        .and_then(|text| create_new_private(&bundle.join("config.json"))?.write_all(&text))
        .map_err(|e| cannot_create("its description", e))?;

    let method = LaunchMethod::Oci(Bundle {
        program: program.clone(),
        dir: bundle,
        name: spec.name.clone(),
        privileged: spec.privileged,
    });
    let client = Pid1Client::spawn(&Pid1Config { method }, stdio, pid1_group)?;
    Ok(Box::new(client))
}

/// Maps the image's user to the one user of the user namespace. True if that needs a second user
/// namespace inside the first.
fn map_image_user(sandbox: &mut Sandbox, dialect: Dialect) -> bool {
    sandbox.identity.groups.clear();
    let is_root = sandbox.identity.uid == 0 && sandbox.identity.gid == 0;
    match dialect {
        Dialect::Crun | Dialect::Other => !is_root,
        Dialect::Runc => {
            sandbox.identity.uid = 0;
            sandbox.identity.gid = 0;
            false
        }
    }
}

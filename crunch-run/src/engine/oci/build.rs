//! Has an external runtime make the container, inside the keeper: writes the bundle and starts the holder.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, getrlimit};

use super::{Bundle, Dialect, Program};
use crate::cgroup::Cgroup;
use crate::cgroup::enforce::Enforceable;
use crate::engine::StartError;
use crate::engine::kept::held::Held;
use crate::engine::kept::holder::{Setup, Way};
use crate::engine::kept::protocol::Plan;
use crate::engine::kept::scene::{Made, Scene, runtime};
use crate::engine::kept::spec::{Facts, Unprivileged, describe};
use crate::engine::kept::{First, groups, look};

pub fn build(
    program: &Program,
    plan: &Plan,
    mut scene: Scene,
    stdio: [OwnedFd; 3],
    made: &mut Made,
) -> Result<Box<dyn First>, StartError> {
    look::over(&scene)?;
    let nested = !plan.privileged && be_somebody(&mut scene, program.dialect);
    let bundle = plan.dir.join("bundle");
    fs::create_dir(&bundle).map_err(|e| runtime("its description", e))?;
    // The description holds the environment, with its tokens: it never reaches a disk.
    mount("tmpfs", &bundle, "tmpfs", MountFlags::NODEV, c"mode=700")
        .map_err(|e| runtime("a file system in memory", e))?;
    made.memory = Some(bundle.clone());

    let no_group = Cgroup::default();
    let groups = made.groups.as_ref();
    let group_path = groups.map(|_| groups::path_inside(&plan.leaf));
    let spec = describe(&Facts {
        rootfs: &scene.root,
        hostname: &scene.hostname,
        arguments: &scene.arguments,
        environment: &scene.environment,
        cwd: &scene.cwd,
        identity: &scene.identity,
        binds: &scene.binds,
        gpus: &plan.gpus,
        network: plan.network,
        limits: &plan.limits,
        quota_above: groups.and_then(|g| g.quota_above),
        enforceable: groups.map_or(Enforceable::NOTHING, |g| g.enforceable),
        group: groups.map_or(&no_group, |g| &g.inside),
        group_path: group_path.as_deref(),
        hard_files: getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20),
        unprivileged: (!plan.privileged).then_some(Unprivileged { nested }),
    })
    .map_err(|e| runtime("its description", e))?;
    serde_json::to_vec(&spec)
        .map_err(io::Error::from)
        .and_then(|text| write_private(&bundle.join("config.json"), &text))
        .map_err(|e| runtime("its description", e))?;

    let way = Way::Oci(Bundle {
        program: program.clone(),
        dir: bundle,
        name: plan.name.clone(),
        privileged: plan.privileged,
    });
    Ok(Box::new(Held::begin(&Setup { way }, stdio)?))
}

/// Makes the image's user somebody who exists in a user namespace with one user. True if that takes
/// another one, inside the first.
fn be_somebody(scene: &mut Scene, dialect: Dialect) -> bool {
    scene.identity.groups.clear();
    let is_root = scene.identity.uid == 0 && scene.identity.gid == 0;
    match dialect {
        Dialect::Crun | Dialect::Other => !is_root,
        Dialect::Runc => {
            scene.identity.uid = 0;
            scene.identity.gid = 0;
            false
        }
    }
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)?
        .write_all(text)
}

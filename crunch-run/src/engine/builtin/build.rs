//! Makes one container inside the keeper with libcontainer.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;

use arvados_client::error::with_causes;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, getrlimit};

use super::first::{Launched, read_report};
use super::launch::Launcher;
use crate::engine::StartError;
use crate::engine::kept::First;
use crate::engine::kept::groups;
use crate::engine::kept::protocol::Plan;
use crate::engine::kept::scene::{Made, Scene, runtime};
use crate::engine::kept::spec::{Facts, describe};

pub fn build(
    plan: &Plan,
    scene: Scene,
    stdio: [OwnedFd; 3],
    made: &Made,
) -> Result<Box<dyn First>, StartError> {
    let groups = made
        .groups
        .as_ref()
        .ok_or_else(|| runtime("its control group", "it needs root"))?;
    let spec = describe(&Facts {
        rootfs: &scene.root,
        hostname: &scene.hostname,
        arguments: &scene.arguments,
        // The launcher hands the real environment to the command; here it would only be copied
        // around. It enters the working directory too, and can say what is wrong with it.
        environment: &[],
        cwd: "/",
        identity: &scene.identity,
        binds: &scene.binds,
        gpus: &plan.gpus,
        network: plan.network,
        limits: &plan.limits,
        quota_above: groups.quota_above,
        enforceable: groups.enforceable,
        group: &groups.inside,
        group_path: Some(&groups::path_inside(&plan.leaf)),
        hard_files: getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20),
        unprivileged: None,
    })
    .map_err(|e| runtime("its description", e))?;
    let bundle = plan.dir.join("bundle");
    write_bundle(&bundle, &spec).map_err(|e| runtime("its description", e))?;

    let (report, reporting) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|e| runtime("a pipe for its launcher", e))?;
    let launcher = Launcher {
        cwd: scene.cwd,
        arguments: scene.arguments,
        environment: scene.environment,
        user: scene.identity.uid.to_string(),
        foreign_formats: foreign_formats(),
        report: Rc::new(reporting),
    };
    let [stdin, stdout, stderr] = stdio;
    let made = ContainerBuilder::new(plan.name.clone(), SyscallType::default())
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
        });
    match made {
        Ok(container) => Ok(Box::new(Launched::new(container, report)?)),
        // The launcher's own words are better than what came through libcontainer.
        Err(error) => Err(read_report(&report).unwrap_or_else(|| StartError::Runtime {
            reason: with_causes(&error),
        })),
    }
}

/// Whether this node runs programs of other formats, say of other processors by emulation.
pub fn foreign_formats() -> bool {
    fs::read_dir("/proc/sys/fs/binfmt_misc")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| entry.file_name() != "register" && entry.file_name() != "status")
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

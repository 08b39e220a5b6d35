//! Creates one container inside the shim with libcontainer.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::rc::Rc;

use arvados_client::error::with_causes;
use host_state::file::create_new_private;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, getrlimit};
use seccompiler::BpfProgram;

use super::exec::ExecLauncher;
use super::init_process::{BuiltinInit, read_report};
use crate::StartError;
use crate::error::cannot_create;
use crate::seccomp::{self, Seccomp};
use crate::shim::InitProcess;
use crate::shim::cgroups;
use crate::shim::executable::foreign_formats;
use crate::shim::mount_points;
use crate::shim::oci_spec::{self, SpecInput, SpecUsers};
use crate::shim::protocol::CreateSpec;
use crate::shim::sandbox::{CreatedResources, Sandbox};

pub fn build(
    spec: &CreateSpec,
    sandbox: Sandbox,
    stdio: [OwnedFd; 3],
    created: &CreatedResources,
) -> Result<Box<dyn InitProcess>, StartError> {
    let groups = created
        .groups
        .as_ref()
        .ok_or_else(|| cannot_create("its control group", "it needs root"))?;
    let own_users = sandbox.own_users.as_ref();
    let namespace = own_users.map(|users| users.namespace.path());
    let oci_spec = oci_spec::build(&SpecInput {
        rootfs: &sandbox.root,
        hostname: &sandbox.hostname,
        arguments: &sandbox.arguments,
        // The launcher passes the real environment to the command, and enters the working directory
        // to report its errors. A copy here would be unused. Without HOME, libcontainer would ask
        // the C library for it inside the container, which then runs modules of the image
        // (nsswitch.conf) before the filter of system calls is there.
        environment: &["HOME=/".to_owned()],
        cwd: "/",
        identity: &sandbox.identity,
        binds: &sandbox.binds,
        gpus: &spec.gpus,
        network: spec.network,
        capabilities: &spec.confinement.capabilities,
        // The launcher installs it.
        seccomp: None,
        limits: &spec.limits,
        parent_quota: groups.parent_quota,
        supported: groups.supported,
        group: &groups.inside,
        group_path: Some(&cgroups::path_inside(&spec.cgroup_name)),
        hard_files: getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20),
        unprivileged: None,
        own_users: own_users.map(|users| SpecUsers {
            map: users.namespace.map,
            // Given the map alone, libcontainer asks systemd for the control group.
            namespace: namespace.as_deref(),
            sysfs: &users.sysfs,
        }),
    })
    .map_err(|e| cannot_create("its description", e))?;
    let bundle = spec.dir.join("bundle");
    write_bundle(&bundle, &oci_spec).map_err(|e| cannot_create("its description", e))?;

    let (report, reporting) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|e| cannot_create("a pipe for its launcher", e))?;
    let launcher = ExecLauncher {
        cwd: sandbox.cwd,
        arguments: sandbox.arguments,
        environment: sandbox.environment,
        user: sandbox.identity.uid.to_string(),
        foreign_formats: foreign_formats(),
        seccomp: filter(&spec.confinement.seccomp)
            .map_err(|e| cannot_create("its filter of system calls", e))?,
        report: Rc::new(reporting),
    };
    let [stdin, stdout, stderr] = stdio;
    let created = ContainerBuilder::new(spec.name.clone(), SyscallType::default())
        .with_executor(launcher)
        .with_stdin(stdin)
        .with_stdout(stdout)
        .with_stderr(stderr)
        .with_root_path(spec.dir.join("state"))
        .and_then(ContainerBuilder::validate_id)
        .and_then(|builder| {
            builder
                .as_init(&bundle)
                .with_systemd(false)
                .with_detach(true)
                .build()
        });
    match created {
        Ok(container) => Ok(Box::new(BuiltinInit::new(container, report)?)),
        // The launcher's report is more precise than libcontainer's error.
        Err(error) => Err(read_report(&report).unwrap_or_else(|| {
            StartError::runtime(format!(
                "in the root file system {} with mounts at {}: {}",
                sandbox.root.display(),
                mount_points::list(&sandbox.binds),
                with_causes(&error)
            ))
        })),
    }
}

/// The filter, compiled: libcontainer has none in this build.
fn filter(seccomp: &Seccomp) -> Result<Vec<BpfProgram>, String> {
    match seccomp.rules().map_err(|error| error.to_string())? {
        Some(rules) => seccomp::compile(&rules),
        None => Ok(Vec::new()),
    }
}

/// Writes the specification for libcontainer. It holds arguments, so only this user may read it.
fn write_bundle(
    bundle: &Path,
    spec: &libcontainer::oci_spec::runtime::Spec,
) -> Result<(), Box<dyn std::error::Error>> {
    fs::DirBuilder::new().mode(0o700).create(bundle)?;
    let mut file = create_new_private(&bundle.join("config.json"))?;
    Ok(file.write_all(&serde_json::to_vec(spec)?)?)
}

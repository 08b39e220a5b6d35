//! Has Apptainer run the container, inside the keeper: makes what mounts need and renders the command line.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;

use pathrs::Root;
use pathrs::flags::OpenFlags;

use super::{Program, dev};
use crate::engine::kept::held::Held;
use crate::engine::kept::holder::{Setup, Way};
use crate::engine::kept::protocol::Plan;
use crate::engine::kept::scene::{Made, Scene, runtime};
use crate::engine::kept::{First, look};
use crate::engine::{Bind, StartError};

/// What Apptainer mounts in every container.
const OWN_MOUNTS: [&str; 3] = ["/proc", "/sys", "/dev"];

pub fn build(
    program: &Program,
    plan: &Plan,
    scene: &Scene,
    stdio: [OwnedFd; 3],
    made: &Made,
) -> Result<Box<dyn First>, StartError> {
    look::over(scene)?;
    let mut binds: Vec<Bind> = scene.binds.clone();
    // A mount inside another one comes after it.
    binds.sort_by_key(|bind| bind.target.components().count());
    let root = Root::open(&scene.root).map_err(|e| runtime("its root", e))?;
    for dir in OWN_MOUNTS {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        root.mkdir_all(dir, &mode)
            .map_err(|e| runtime(&format!("the mount point {dir}"), e))?;
    }
    for bind in &binds {
        make_target(&root, bind, &binds)
            .map_err(|e| runtime(&format!("the mount point {}", bind.target.display()), e))?;
    }
    binds.extend(plan.gpus.devices.iter().map(|node| Bind {
        host: node.path.clone(),
        target: node.path.clone(),
        writable: true,
    }));
    dev::move_nodes(&plan.gpus.devices, &plan.dir)?;
    let way = Way::Command {
        program: program.path.clone(),
        arguments: arguments(plan.privileged, scene, &binds),
        environment: environment(program, &scene.environment),
    };
    let held = Held::begin(&Setup { way }, stdio)?;
    if let Some(groups) = &made.groups {
        groups
            .inside
            .enter(held.holder())
            .map_err(|e| runtime("its place in the control group", e))?;
    }
    Ok(Box::new(held))
}

fn arguments(privileged: bool, scene: &Scene, binds: &[Bind]) -> Vec<OsString> {
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
    for bind in binds {
        all.push("--mount".into());
        all.push(mount(bind));
    }
    all.extend(["--pwd".into(), OsString::from(&scene.cwd)]);
    all.push(scene.root.clone().into());
    all.extend(scene.arguments.iter().map(OsString::from));
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

/// For the program itself as little as it needs; for the container, all of it by the program's prefix.
fn environment(program: &Program, container: &[String]) -> Vec<(String, String)> {
    let prefix = program.variant.prefix();
    let mut all = vec![
        ("PATH".to_owned(), program.search_path.clone()),
        // It would keep its configuration there.
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

/// In a writable root directory Apptainer makes no mount points.
fn make_target(root: &Root, bind: &Bind, all: &[Bind]) -> Result<(), pathrs::error::Error> {
    let is_inside_another = all
        .iter()
        .any(|other| other.target != bind.target && bind.target.starts_with(&other.target));
    if is_inside_another || root.resolve(&bind.target).is_ok() {
        return Ok(());
    }
    let dir_mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    if bind.host.is_dir() {
        return root.mkdir_all(&bind.target, &dir_mode).map(drop);
    }
    if let Some(parent) = bind.target.parent() {
        root.mkdir_all(parent, &dir_mode)?;
    }
    let file_mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    root.create_file(&bind.target, OpenFlags::O_WRONLY, &file_mode)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::apptainer::Variant;

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
        let program = Program {
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

//! Checks the kernel: version, overlayfs and the limit of open files.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit};

use container_engine::kernel_version;
use preflight::{Finding, Subject};

/// Minimum version for overlay mounts by ordinary users.
const MIN_KERNEL_USER_OVERLAY: (u32, u32) = (5, 11);
/// Minimum version with the cgroups, namespaces and system calls that every engine needs.
const MIN_KERNEL: (u32, u32) = (4, 18);
/// Minimum number of open files for containers with many mounts and engines with many pipes.
const MIN_OPEN_FILES: u64 = 4096;

pub fn run() -> Vec<Finding> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let file_systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let module = format!("/lib/modules/{release}/kernel/fs/overlayfs");
    let module = Path::new(&module).exists();
    let is_root = rustix::process::geteuid().is_root();
    vec![
        version(&release, is_root),
        overlay(&file_systems, module, is_root),
        open_files(getrlimit(Resource::Nofile)),
    ]
}

fn version(release: &str, is_root: bool) -> Finding {
    let what = Subject("kernel");
    match kernel_version(release) {
        Some(version) if version < MIN_KERNEL => what.fail(
            format!("Linux {release} is too old"),
            format!(
                "containers need Linux {}.{} or newer",
                MIN_KERNEL.0, MIN_KERNEL.1
            ),
        ),
        Some(version) if version < MIN_KERNEL_USER_OVERLAY && !is_root => what.warn(
            format!("Linux {release} lets no ordinary user mount overlays"),
            "use apptainer, or Linux 5.11 or newer",
        ),
        _ => what.ok(format!("Linux {release}")),
    }
}

fn overlay(file_systems: &str, has_module: bool, is_root: bool) -> Finding {
    let what = Subject("overlayfs");
    let is_there = file_systems
        .lines()
        .any(|line| line.split_whitespace().last() == Some("overlay"));
    match (is_there, has_module && is_root) {
        (true, _) => what.ok("the kernel has it"),
        (false, true) => what.ok("a module that is loaded when it is needed"),
        (false, false) => what.warn(
            "the kernel does not have it loaded, and images are laid over each other with it",
            "modprobe overlay, and name it in /etc/modules-load.d",
        ),
    }
}

fn open_files(limit: Rlimit) -> Finding {
    let what = Subject("open files");
    let number =
        |limit: Option<u64>| limit.map_or_else(|| "any number".to_owned(), |n| n.to_string());
    let finding = format!(
        "a process may have {} open, and raise that to {}",
        number(limit.current),
        number(limit.maximum)
    );
    match limit.maximum {
        Some(most) if most < MIN_OPEN_FILES => what.warn(finding,
            format!(
                "give jobs at least {MIN_OPEN_FILES}: LimitNOFILE of slurmd's or condor's service, or limits.conf"
            ),
        ),
        _ => what.ok(finding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use preflight::Level;

    #[test]
    fn versions() {
        for (release, is_root, level) in [
            ("6.1.0-18-amd64", true, Level::Ok),
            ("6.1.0-18-amd64", false, Level::Ok),
            ("5.10.0", true, Level::Ok),
            ("5.10.0", false, Level::Warn),
            ("4.18.0-553.el8", true, Level::Ok),
            ("3.10.0-1160.el7", true, Level::Fail),
            ("unheard of", true, Level::Ok),
        ] {
            assert_eq!(
                version(release, is_root).level,
                level,
                "{release} {is_root}"
            );
        }
    }

    #[test]
    fn overlays() {
        let with = "nodev\tsysfs\nnodev\toverlay\n\text4\n";
        let without = "nodev\tsysfs\n\toverlayish\n";
        for (text, module, is_root, level) in [
            (with, false, false, Level::Ok),
            (without, true, true, Level::Ok),
            (without, true, false, Level::Warn),
            (without, false, true, Level::Warn),
        ] {
            assert_eq!(overlay(text, module, is_root).level, level);
        }
    }

    #[test]
    fn limits_of_files() {
        for (maximum, level) in [
            (None, Level::Ok),
            (Some(4096), Level::Ok),
            (Some(1024), Level::Warn),
        ] {
            let limit = Rlimit {
                current: Some(1024),
                maximum,
            };
            let finding = open_files(limit);
            assert_eq!(finding.level, level);
            assert!(finding.finding.contains("1024"), "{finding:?}");
        }
    }
}

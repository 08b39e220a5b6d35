//! GPUs: the driver, the device nodes, CDI specs, and whether nvidia-smi answers.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use super::finding::Finding;

/// A GPU that hangs makes it hang too.
const PATIENCE: Duration = Duration::from_secs(10);
const WHAT: &str = "GPUs";

/// What is to be seen of GPUs on this node.
#[derive(Debug, Clone, Default)]
struct Facts {
    /// Of NVIDIA's kernel driver.
    nvidia_version: Option<String>,
    nvidia_nodes: usize,
    has_kfd: bool,
    render_nodes: usize,
    /// Files that may be CDI specs.
    specs: usize,
    /// What nvidia-smi listed, or why it did not; `None` if it is not installed.
    nvidia_smi: Option<Result<usize, String>>,
}

pub async fn look() -> Vec<Finding> {
    let named = |dir: &str, is_one: fn(&str) -> bool| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| is_one(&entry.file_name().to_string_lossy()))
            .count()
    };
    let is_spec = |name: &str| {
        [".json", ".yaml", ".yml"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    let version = fs::read_to_string("/proc/driver/nvidia/version").ok();
    judge(&Facts {
        nvidia_version: version.map(|text| version_in(&text)),
        nvidia_nodes: named("/dev", |name| {
            name.strip_prefix("nvidia")
                .is_some_and(|number| number.parse::<u32>().is_ok())
        }),
        has_kfd: Path::new("/dev/kfd").exists(),
        render_nodes: named("/dev/dri", |name| name.starts_with("renderD")),
        specs: named("/etc/cdi", is_spec) + named("/var/run/cdi", is_spec),
        nvidia_smi: match which::which("nvidia-smi") {
            Ok(program) => Some(ask(&program).await),
            Err(_) => None,
        },
    })
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug …`: the first word of digits and dots.
fn version_in(text: &str) -> String {
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    let found = text.split_whitespace().find(is_version);
    found.unwrap_or("of an unknown version").to_owned()
}

async fn ask(program: &Path) -> Result<usize, String> {
    let running = Command::new(program).arg("-L").kill_on_drop(true).output();
    let output = match tokio::time::timeout(PATIENCE, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer within {} s", PATIENCE.as_secs())),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = text.lines().next().unwrap_or_default().to_owned();
        return Err(format!("{}: {said}", output.status));
    }
    Ok(text.lines().filter(|line| line.starts_with("GPU ")).count())
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    match (&facts.nvidia_version, facts.nvidia_nodes) {
        (None, 0) => {}
        (Some(version), 0) => findings.push(Finding::warn(
            WHAT,
            format!("NVIDIA's driver {version} is loaded, and there are no device nodes"),
            "nvidia-modprobe -c 0 -u, and nvidia-persistenced at boot",
        )),
        (None, nodes) => findings.push(Finding::warn(
            WHAT,
            format!("{nodes} NVIDIA device nodes, and no driver in the kernel"),
            "load it: modprobe nvidia; or remove what is left of it in /dev",
        )),
        (Some(version), nodes) => findings.push(Finding::ok(
            WHAT,
            format!("{nodes} of NVIDIA, driver {version}"),
        )),
    }
    match &facts.nvidia_smi {
        Some(Ok(listed)) if *listed == facts.nvidia_nodes => {}
        Some(Ok(listed)) => findings.push(Finding::warn(
            WHAT,
            format!("nvidia-smi lists {listed}, and there are {} device nodes", facts.nvidia_nodes),
            "look for the missing one in dmesg (NVRM, Xid)",
        )),
        Some(Err(reason)) if facts.nvidia_nodes > 0 || facts.nvidia_version.is_some() => findings
            .push(Finding::warn(
                WHAT,
                format!("nvidia-smi does not list them: {reason}"),
                "driver and tools may be of two versions, or a GPU is lost: see dmesg; reboot the node",
            )),
        _ => {}
    }
    match (facts.has_kfd, facts.render_nodes) {
        (true, 0) => findings.push(Finding::warn(
            WHAT,
            "/dev/kfd is there, and no /dev/dri/renderD*",
            "load AMD's driver whole: modprobe amdgpu",
        )),
        (true, nodes) => findings.push(Finding::ok(
            WHAT,
            format!("/dev/kfd (AMD) and {nodes} render nodes"),
        )),
        (false, _) => {}
    }
    if findings.is_empty() {
        findings.push(Finding::ok(WHAT, "none"));
    }
    let specs = match facts.specs {
        0 => "no CDI spec in /etc/cdi or /var/run/cdi; devices are found by their nodes".to_owned(),
        count => format!("{count} files of CDI specs in /etc/cdi and /var/run/cdi"),
    };
    findings.push(Finding::ok("CDI", specs));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level;

    #[test]
    fn what_a_node_shows_of_gpus() {
        let nothing = Facts::default();
        let nvidia = Facts {
            nvidia_version: Some("535.1".to_owned()),
            nvidia_nodes: 2,
            nvidia_smi: Some(Ok(2)),
            specs: 1,
            ..nothing.clone()
        };
        let with = |change: fn(&mut Facts)| {
            let mut facts = nvidia.clone();
            change(&mut facts);
            facts
        };
        let amd = Facts {
            has_kfd: true,
            render_nodes: 4,
            ..nothing.clone()
        };
        for (facts, level, words) in [
            (nothing, Level::Ok, "none"),
            (nvidia.clone(), Level::Ok, "2 of NVIDIA, driver 535.1"),
            (with(|f| f.nvidia_nodes = 0), Level::Warn, "no device nodes"),
            (with(|f| f.nvidia_version = None), Level::Warn, "no driver"),
            (with(|f| f.nvidia_smi = Some(Ok(1))), Level::Warn, "lists 1"),
            (
                with(|f| f.nvidia_smi = Some(Err("lost".to_owned()))),
                Level::Warn,
                "lost",
            ),
            (amd.clone(), Level::Ok, "4 render nodes"),
            (
                Facts {
                    render_nodes: 0,
                    ..amd
                },
                Level::Warn,
                "no /dev/dri",
            ),
        ] {
            let findings = judge(&facts);
            let worst = findings.iter().map(|f| f.level).max().unwrap();
            assert_eq!(worst, level, "{findings:?}");
            assert!(
                findings.iter().any(|f| f.finding.contains(words)),
                "{findings:?}"
            );
            assert_eq!(findings.last().unwrap().what, "CDI");
        }
    }

    #[test]
    fn the_driver_s_version_is_found_in_its_line() {
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n";
        assert_eq!(version_in(line), "535.104.05");
        assert_eq!(version_in(""), "of an unknown version");
    }
}

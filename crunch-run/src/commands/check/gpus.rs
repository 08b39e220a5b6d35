//! Checks GPUs: driver, device nodes, CDI specifications and nvidia-smi.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use container_engine::gpu::Registry;
use preflight::{Finding, Subject};

/// Timeout of nvidia-smi; a hanging GPU makes it hang too.
const NVIDIA_SMI_TIMEOUT: Duration = Duration::from_secs(10);
const GPUS: Subject = Subject("GPUs");

/// State of the GPUs of this node.
#[derive(Debug, Clone, Default)]
struct GpuState {
    /// Version of NVIDIA's kernel driver.
    nvidia_version: Option<String>,
    nvidia_nodes: usize,
    has_kfd: bool,
    render_nodes: usize,
    cdi: Cdi,
    /// Number of GPUs that nvidia-smi lists, or its error; `None` if it is not installed.
    nvidia_smi: Option<Result<usize, String>>,
}

/// State of the CDI specifications.
#[derive(Debug, Clone, Default)]
struct Cdi {
    /// Their directories.
    places: String,
    /// The devices; `None` if there are none.
    described: Option<String>,
    problems: Vec<String>,
}

impl Cdi {
    fn of(registry: &Registry) -> Self {
        Self {
            places: registry.directories(),
            described: registry.describe_devices(),
            problems: registry.problems(),
        }
    }
}

pub async fn run(cdi_dirs: Vec<PathBuf>) -> Vec<Finding> {
    let named = |dir: &str, is_one: fn(&str) -> bool| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| is_one(&entry.file_name().to_string_lossy()))
            .count()
    };
    let version = fs::read_to_string("/proc/driver/nvidia/version").ok();
    evaluate(&GpuState {
        nvidia_version: version.map(|text| version_in(&text)),
        nvidia_nodes: named("/dev", |name| {
            name.strip_prefix("nvidia")
                .is_some_and(|number| number.parse::<u32>().is_ok())
        }),
        has_kfd: Path::new("/dev/kfd").exists(),
        render_nodes: named("/dev/dri", |name| name.starts_with("renderD")),
        // A dead mount must not block the other checks.
        cdi: tokio::task::spawn_blocking(move || Cdi::of(&Registry::read(&cdi_dirs)))
            .await
            .unwrap_or_default(),
        nvidia_smi: match which::which("nvidia-smi") {
            Ok(program) => Some(ask(&program).await),
            Err(_) => None,
        },
    })
}

/// Returns the first word of digits and dots in
/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug …`.
fn version_in(text: &str) -> String {
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    let found = text.split_whitespace().find(is_version);
    found.unwrap_or("of an unknown version").to_owned()
}

async fn ask(program: &Path) -> Result<usize, String> {
    let running = Command::new(program).arg("-L").kill_on_drop(true).output();
    let output = match tokio::time::timeout(NVIDIA_SMI_TIMEOUT, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => {
            return Err(format!(
                "no answer within {} s",
                NVIDIA_SMI_TIMEOUT.as_secs()
            ));
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let line = text.lines().next().unwrap_or_default().to_owned();
        return Err(format!("{}: {line}", output.status));
    }
    Ok(text.lines().filter(|line| line.starts_with("GPU ")).count())
}

fn evaluate(info: &GpuState) -> Vec<Finding> {
    let mut findings = Vec::new();
    match (&info.nvidia_version, info.nvidia_nodes) {
        (None, 0) => {}
        (Some(version), 0) => findings.push(GPUS.warn(
            format!("NVIDIA's driver {version} is loaded, and there are no device nodes"),
            "nvidia-modprobe -c 0 -u, and nvidia-persistenced at boot",
        )),
        (None, nodes) => findings.push(GPUS.warn(
            format!("{nodes} NVIDIA device nodes, and no driver in the kernel"),
            "load it: modprobe nvidia; or remove what is left of it in /dev",
        )),
        (Some(version), nodes) => {
            findings.push(GPUS.ok(format!("{nodes} of NVIDIA, driver {version}")))
        }
    }
    match &info.nvidia_smi {
        Some(Ok(listed)) if *listed == info.nvidia_nodes => {}
        Some(Ok(listed)) => findings.push(GPUS.warn(format!("nvidia-smi lists {listed}, and there are {} device nodes", info.nvidia_nodes),
            "look for the missing one in dmesg (NVRM, Xid)",
        )),
        Some(Err(reason)) if info.nvidia_nodes > 0 || info.nvidia_version.is_some() => findings
            .push(GPUS.warn(format!("nvidia-smi does not list them: {reason}"),
                "driver and tools may be of two versions, or a GPU is lost: see dmesg; reboot the node",
            )),
        _ => {}
    }
    match (info.has_kfd, info.render_nodes) {
        (true, 0) => findings.push(GPUS.warn(
            "/dev/kfd is there, and no /dev/dri/renderD*",
            "load AMD's driver whole: modprobe amdgpu",
        )),
        (true, nodes) => findings.push(GPUS.ok(format!("/dev/kfd (AMD) and {nodes} render nodes"))),
        (false, _) => {}
    }
    if findings.is_empty() {
        findings.push(GPUS.ok("none"));
    }
    findings.extend(evaluate_cdi(&info.cdi));
    findings
}

/// Evaluates CDI. If specifications describe any device of a kind, they alone are used.
fn evaluate_cdi(cdi: &Cdi) -> Vec<Finding> {
    let what = Subject("CDI");
    let places = &cdi.places;
    let problems = cdi.problems.iter().map(|problem| {
        let mend = "fix or remove it; for NVIDIA: nvidia-ctk cdi generate";
        what.warn(problem, mend)
    });
    let described = match &cdi.described {
        Some(devices) => format!("{devices}, described in {places}"),
        None => format!("no device is described in {places}; GPUs are found by their nodes"),
    };
    problems.chain([what.ok(described)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use preflight::Level;

    #[test]
    fn what_a_node_shows_of_gpus() {
        let nothing = GpuState::default();
        let nvidia = GpuState {
            nvidia_version: Some("535.1".to_owned()),
            nvidia_nodes: 2,
            nvidia_smi: Some(Ok(2)),
            ..nothing.clone()
        };
        let with = |change: fn(&mut GpuState)| {
            let mut info = nvidia.clone();
            change(&mut info);
            info
        };
        let amd = GpuState {
            has_kfd: true,
            render_nodes: 4,
            ..nothing.clone()
        };
        for (info, level, words) in [
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
                GpuState {
                    render_nodes: 0,
                    ..amd
                },
                Level::Warn,
                "no /dev/dri",
            ),
        ] {
            let findings = evaluate(&info);
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
    fn specifications_are_read_as_a_run_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let findings = || evaluate_cdi(&Cdi::of(&Registry::read(&[dir.path().to_owned()])));
        let path = dir.path().display().to_string();
        let none = findings();
        assert_eq!((none.len(), none[0].level), (1, Level::Ok));
        assert!(none[0].finding.contains("no device is described in"));
        let spec = r#"{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {}}]}"#;
        fs::write(dir.path().join("a.json"), spec).unwrap();
        let good = findings();
        let expected = format!("nvidia.com/gpu=0, described in {path}");
        assert_eq!((good.len(), &good[0].finding), (1, &expected));
        fs::write(dir.path().join("b.json"), spec).unwrap();
        fs::write(dir.path().join("c.yaml"), "kind: [").unwrap();
        // The file is no valid specification.
        fs::write(dir.path().join("d.yml"), "kind: [").unwrap();
        let bad = findings();
        let levels: Vec<Level> = bad.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Warn, Level::Warn, Level::Ok], "{bad:?}");
        assert!(bad[0].finding.contains("c.yaml cannot be used"), "{bad:?}");
        assert!(bad[1].finding.contains("two CDI specifications"), "{bad:?}");
    }

    #[test]
    fn the_driver_s_version_is_found_in_its_line() {
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n";
        assert_eq!(version_in(line), "535.104.05");
        assert_eq!(version_in(""), "of an unknown version");
    }
}

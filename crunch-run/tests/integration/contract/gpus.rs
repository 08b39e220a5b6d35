//! GPUs of an invented vendor, described by CDI: two devices, one of which is granted to a
//! container.

use std::fs;
use std::path::PathBuf;

use arvados_client::records::ContainerState;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};
use tokio::process::Child;

use crate::contract::engines::Engine;
use crate::contract::lab::Lab;
use crate::contract::nobody;
use crate::run_lab::{Finished, Job, file, finish};

/// Prints the vendor's devices, files and variables that the container finds.
const GPU_PROBE_SCRIPT: &str = "ls /dev | grep fakegpu; for f in /opt/fake/*; do cat $f; done; env | grep FAKE_ | sort; \
                    head -c 3 /dev/fakegpu0 | wc -c";

/// Variables that schedulers set in the environment of a job.
const SCHEDULERS: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "AMD_VISIBLE_DEVICES",
    "SLURM_JOB_GPUS",
    "_CONDOR_AssignedGPUs",
];

/// Devices with the numbers of /dev/zero and /dev/full, which any container may open.
struct Vendor {
    dir: PathBuf,
}

impl Vendor {
    fn new(lab: &Lab) -> Self {
        let dir = lab.world.dir().join("vendor");
        fs::create_dir_all(dir.join("cdi")).unwrap();
        for (number, minor) in [(0, 5), (1, 7)] {
            let path = dir.join(format!("gpu{number}"));
            let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o666));
            mknodat(CWD, &path, kind, mode, makedev(1, minor)).unwrap();
            fs::write(
                dir.join(format!("driver{number}")),
                format!("driver {number}\n"),
            )
            .unwrap();
        }
        fs::write(dir.join("shared"), "shared driver\n").unwrap();
        let vendor = Self { dir };
        vendor.describe("lab.example/gpu", json!([]));
        vendor
    }

    fn describe(&self, kind: &str, hooks: Value) {
        let file = |name: &str| self.dir.join(name);
        let mount = |name: &str| {
            json!({"hostPath": file(name), "containerPath": format!("/opt/fake/{name}"),
                   "options": ["ro", "nosuid", "bind"]})
        };
        let devices: Vec<Value> = (0..2)
            .map(|n| {
                json!({"name": n.to_string(), "containerEdits": {
                    "env": [format!("FAKE_GPU_{n}=yes")],
                    "deviceNodes": [{"path": format!("/dev/fakegpu{n}"), "hostPath": file(&format!("gpu{n}"))}],
                    "mounts": [mount(&format!("driver{n}"))],
                }})
            })
            .collect();
        let spec = json!({
            "cdiVersion": "0.6.0", "kind": kind, "devices": devices,
            "containerEdits": {"env": ["FAKE_DRIVER=1.0"], "mounts": [mount("shared")], "hooks": hooks},
        });
        fs::write(self.dir.join("cdi/vendor.json"), spec.to_string()).unwrap();
    }

    /// A PATH with a program that lists two GPUs as nvidia-smi does.
    fn path_with_smi(&self) -> String {
        let script = "#!/bin/sh\ncase \"$*\" in\n\
                      *COMPUTE*) echo 'CUDA Version : 12.4' ;;\n\
                      *) echo '0, GPU-aa11, Lab GPU, 550.1, 9.0, 4096'\n\
                         echo '1, GPU-bb22, Lab GPU Mini, 550.1, 7.5, 2048' ;;\nesac\n";
        let bin = self.dir.join("bin");
        fs::create_dir_all(&bin).unwrap();
        crate::run_lab::script::write(&bin.join("nvidia-smi"), script);
        format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin", bin.display())
    }

    fn flags(&self, granted: &str) -> Vec<String> {
        vec![
            format!("--cdi-spec-dir={}", self.dir.join("cdi").display()),
            "--gpu-stack=cuda".to_owned(),
            format!("--gpu-ids={granted}"),
        ]
    }
}

fn wish(count: u32) -> Value {
    wish_for(count, "1.0")
}

fn wish_for(count: u32, driver: &str) -> Value {
    json!({"runtime_constraints": {
        "vcpus": 1, "ram": 128 << 20, "gpu": {
            "stack": "cuda", "device_count": count, "driver_version": driver, "hardware_target": ["1.0"], "vram": 0,
        },
    }})
}

async fn start(lab: &Lab, script: &str, more: Value, flags: &[String]) -> (Job, Child) {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    lab.start(&["sh", "-c", script], more, &flags).await
}

/// The container never ran, and may be tried on another node.
async fn refused(lab: &Lab, more: Value, flags: &[String]) -> Finished {
    let (job, child) = start(lab, "echo ran", more, flags).await;
    let finished = finish(child).await;
    assert_eq!(finished.code, 75, "{}", finished.output);
    assert_eq!(lab.world.record(&job).await.state, ContainerState::Locked);
    let left = lab.engine.left_overs(&job.uuid).await;
    assert!(left.is_empty(), "{left:?} is left");
    finished
}

pub async fn the_granted_gpu_is_there_and_the_other_is_not(lab: &Lab) {
    let vendor = Vendor::new(lab);
    let flags = vendor.flags("lab.example/gpu=0");
    let (job, child) = start(lab, GPU_PROBE_SCRIPT, wish(1), &flags).await;
    let ended = lab.end(job, child).await;
    assert_eq!(
        ended.stdout(),
        [
            "fakegpu0",
            "driver 0",
            "shared driver",
            "FAKE_DRIVER=1.0",
            "FAKE_GPU_0=yes",
            "3"
        ],
        "{:?}",
        ended.stderr()
    );
}

pub async fn all_granted_gpus_are_there(lab: &Lab) {
    let vendor = Vendor::new(lab);
    let flags = vendor.flags("lab.example/gpu=1,lab.example/gpu=0");
    let (job, child) = start(lab, "ls /dev | grep fakegpu; ls /opt/fake", wish(2), &flags).await;
    let ended = lab.end(job, child).await;
    let expected = ["fakegpu0", "fakegpu1", "driver0", "driver1", "shared"];
    assert_eq!(ended.stdout(), expected);
}

pub async fn without_a_wish_no_gpu_is_seen(lab: &Lab) {
    let vendor = Vendor::new(lab);
    let script = "ls /dev | grep -c fakegpu; ls /opt/fake 2>/dev/null; \
                  env | grep -E 'FAKE|CUDA|ROCR|NVIDIA|AMD_|SLURM|CONDOR'; true";
    let job = lab.world.lock(&["sh", "-c", script], json!({})).await;
    let flags = vendor.flags("lab.example/gpu=0");
    let flags: Vec<&str> = flags.iter().map(AsRef::as_ref).collect();
    let mut program = lab.program(&job, &flags);
    program.envs(SCHEDULERS.map(|name| (name, "lab.example/gpu=0")));
    let child = program.spawn().unwrap();
    assert_eq!(lab.end(job, child).await.stdout(), ["0"]);
}

pub async fn a_gpu_the_node_does_not_have_is_refused(lab: &Lab) {
    let vendor = Vendor::new(lab);
    let finished = refused(lab, wish(1), &vendor.flags("lab.example/gpu=7")).await;
    // No inputs were fetched for the refused container.
    assert!(
        !finished.output.contains("Fetching inputs"),
        "{}",
        finished.output
    );
    for words in [
        "GPU lab.example/gpu=7 was granted but cannot be given to the container",
        "they describe lab.example/gpu=0, lab.example/gpu=1",
    ] {
        assert!(finished.output.contains(words), "{}", finished.output);
    }
}

pub async fn too_few_granted_are_refused(lab: &Lab) {
    let vendor = Vendor::new(lab);
    let finished = refused(lab, wish(2), &vendor.flags("lab.example/gpu=0")).await;
    let words = "asks for 2 GPUs, and the scheduler granted this job 1 (--gpu-ids)";
    assert!(finished.output.contains(words), "{}", finished.output);
}

pub async fn a_vendor_s_hook_is_run_or_missed_aloud(lab: &Lab) {
    let vendor = Vendor::new(lab);
    let ran = vendor.dir.join("hook-ran");
    fs::write(&ran, "").unwrap();
    if lab.engine.is_nobodys() {
        nobody::give(&ran);
    }
    vendor.describe(
        "lab.example/gpu",
        json!([{
            "hookName": "createContainer", "path": "/bin/sh",
            "args": ["sh", "-c", format!("cat >{}", ran.display())],
        }]),
    );
    let flags = vendor.flags("lab.example/gpu=0");
    let (job, child) = start(lab, "ls /dev | grep fakegpu", wish(1), &flags).await;
    let ended = lab.end(job, child).await;
    assert_eq!(ended.stdout(), ["fakegpu0"]);
    let is_said = ended.story().iter().any(|line| line.contains("CDI hooks"));
    let is_run = match lab.engine {
        Engine::Builtin
        | Engine::Crun
        | Engine::Runc
        | Engine::CrunAsNobody
        | Engine::RuncAsNobody => true,
        Engine::Apptainer
        | Engine::ApptainerAsNobody
        | Engine::Docker
        | Engine::Podman
        | Engine::PodmanAsNobody
        | Engine::DockerAsNobody => false,
    };
    let hook_output = fs::read_to_string(&ran).unwrap();
    assert_eq!(!hook_output.is_empty(), is_run, "{hook_output}");
    assert_eq!(is_said, !is_run, "{:?}", ended.story());
}

pub async fn a_gpu_that_is_not_what_was_asked_for_is_refused(lab: &Lab) {
    let vendor = Vendor::new(lab);
    vendor.describe("nvidia.com/gpu", json!([]));
    let path = vendor.path_with_smi();
    let ask = async |driver: &str| {
        let job = lab.world.lock(&["echo", "ran"], wish_for(1, driver)).await;
        let flags = vendor.flags("0");
        let flags: Vec<&str> = flags.iter().map(AsRef::as_ref).collect();
        let mut program = lab.program(&job, &flags);
        (job, program.env("PATH", &path).spawn().unwrap())
    };
    let (job, child) = ask("12.5").await;
    let finished = finish(child).await;
    assert_eq!(finished.code, 75, "{}", finished.output);
    let words = "GPU 0 (Lab GPU) is not what the container asks for: CUDA 12.5 or newer, but its driver is for CUDA 12.4";
    assert!(finished.output.contains(words), "{}", finished.output);
    assert_eq!(lab.world.record(&job).await.state, ContainerState::Locked);

    let (job, child) = ask("12.4").await;
    let ended = lab.end(job, child).await;
    assert_eq!(ended.stdout(), ["ran"]);
    let result: Value = serde_json::from_str(file(&ended.log, "result.json")).unwrap();
    assert_eq!(result["gpus"], json!(["0"]));
    assert_eq!(result["gpu_models"], json!(["Lab GPU"]));
    let node = file(&ended.log, "node-info.txt");
    assert!(
        node.contains("1 GPU-bb22 Lab GPU Mini 550.1 12.4 7.5 2048\n"),
        "{node}"
    );
}

//! With a real NVIDIA GPU: a container gets only the granted one, and the driver works in it. Run
//! by `make test-gpu`, as root, on a machine with a GPU. Needs busybox-static and crun, and no
//! network.

use std::fs;
use std::path::{Path, PathBuf};

use crate::engine_lab::{Lab, shell};
use container_engine::gpu::{self, CDI_DIRS};
use container_engine::oci::OciEngine;
use container_engine::{Bind, Engine, GpuGrant, GpuStack};

/// The first GPU whose node is there.
struct Gpu {
    minor: u32,
    uuid: String,
}

impl Gpu {
    fn first() -> Self {
        let information = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path().join("information")).ok()?;
            let field = |name: &str| {
                let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
                Some(rest.trim_start().strip_prefix(':')?.trim().to_owned())
            };
            let minor = field("Device Minor")?.parse().ok()?;
            let uuid = field("GPU UUID")?;
            Path::new(&format!("/dev/nvidia{minor}"))
                .exists()
                .then_some(Self { minor, uuid })
        };
        let mut gpus: Vec<Self> = fs::read_dir("/proc/driver/nvidia/gpus")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(information)
            .collect();
        gpus.sort_by_key(|gpu| gpu.minor);
        gpus.into_iter().next().expect(
            "these tests need an NVIDIA GPU and its driver: none is in /proc/driver/nvidia/gpus with a node in /dev",
        )
    }
}

fn labs() -> [Lab; 2] {
    let config = || serde_json::json!({"Env": ["PATH=/bin:/usr/bin"], "Cmd": ["sh"]});
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let crun = Lab::of(dir, run_dir, config(), |store, settings| {
        Box::new(OciEngine::new(store, settings, Some("crun".into()))) as Box<dyn Engine>
    });
    [Lab::with_config(config()), crun]
}

/// The machine's C library, which the driver's programs need and the image of busybox has not.
fn libraries() -> Vec<Bind> {
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64"]
        .map(PathBuf::from)
        .into_iter()
        .filter(|dir| dir.is_dir())
        .map(|dir| Bind {
            host: dir.canonicalize().unwrap(),
            target: dir,
            writable: false,
        })
        .collect()
}

async fn only_the_granted_one_is_seen(id: &str) {
    let gpu = Gpu::first();
    for lab in labs() {
        let grant = GpuGrant {
            stack: GpuStack::Cuda,
            ids: vec![id.to_owned()],
        };
        let mut request = shell("ls /dev | grep -E '^nvidia[0-9]+$'; nvidia-smi -L");
        request.binds = libraries();
        request.gpus = Some(
            gpu::access(&grant, &CDI_DIRS.map(PathBuf::from))
                .await
                .unwrap(),
        );
        let engine = lab.engine.name();
        let ended = lab.run(request).await.unwrap();
        let lines: Vec<&str> = ended.stdout.lines().collect();
        let (nodes, listed): (Vec<&str>, Vec<&str>) =
            lines.iter().partition(|line| line.starts_with("nvidia"));
        assert_eq!(
            nodes,
            [format!("nvidia{}", gpu.minor)],
            "{engine}: {}",
            ended.stderr
        );
        assert_eq!(
            listed.len(),
            1,
            "{engine}: {} {}",
            ended.stdout,
            ended.stderr
        );
        assert!(listed[0].contains(&gpu.uuid), "{engine}: {}", ended.stdout);
    }
}

#[tokio::test]
#[ignore = "needs an NVIDIA GPU: make test-gpu"]
async fn by_index() {
    only_the_granted_one_is_seen(&Gpu::first().minor.to_string()).await;
}

#[tokio::test]
#[ignore = "needs an NVIDIA GPU: make test-gpu"]
async fn by_uuid() {
    only_the_granted_one_is_seen(&Gpu::first().uuid).await;
}

#[tokio::test]
#[ignore = "needs an NVIDIA GPU: make test-gpu"]
async fn without_a_grant_none_is_seen() {
    let gpu = Gpu::first();
    for lab in labs() {
        let ended = lab
            .run(shell("ls /dev | grep -c nvidia; true"))
            .await
            .unwrap();
        assert_eq!(
            ended.stdout,
            "0\n",
            "{}: nvidia{}",
            lab.engine.name(),
            gpu.minor
        );
    }
}

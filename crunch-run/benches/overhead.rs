//! Overhead of crunch-run with each engine: the whole program for one `/bin/true`, against that
//! engine's own `run` of the same image, alternately. Also the cost of a cold cache and of a
//! thousand mounts.

#[path = "../tests/integration/contract/daemons.rs"]
mod daemons;
#[path = "../tests/integration/engine_lab/mod.rs"]
mod engine_lab;
#[path = "../tests/integration/run_lab/mod.rs"]
mod run_lab;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use run_lab::World;
use serde_json::{Value, json};

const ROUNDS: usize = 25;
const MOUNTS: usize = 1000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let world = World::new().await;
    let cache = world.dir().join("cache");
    let cold = run(
        &world,
        &cache,
        &["--runtime-engine=builtin".into()],
        json!({}),
    )
    .await;
    let root = rootfs(&cache);
    println!("{ROUNDS} times /bin/true, medians      crunch-run   its own run   difference");
    for engine in engines(&world, &root) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let took = run(&world, &cache, &engine.flags, json!({})).await;
            let begin = Instant::now();
            let output = (engine.reference)(round)
                .output()
                .expect("the engine's own command");
            assert!(output.status.success(), "{}: {output:?}", engine.name);
            // The first brought the image.
            if round > 0 {
                ours.push(took);
                theirs.push(begin.elapsed());
            }
        }
        let (ours, theirs) = (median(ours), median(theirs));
        println!(
            "{:25} {ours:14.1} ms {theirs:10.1} ms {:9.1} ms",
            engine.name,
            ours - theirs
        );
    }
    let file = world.collection(&[("file", b"text")]).await.to_string();
    let mounts: serde_json::Map<String, Value> = (0..MOUNTS)
        .map(|n| {
            (
                format!("/in/{n}"),
                json!({"kind": "collection", "portable_data_hash": file}),
            )
        })
        .chain([("/out".into(), json!({"kind": "tmp", "capacity": 1 << 20}))])
        .collect();
    let flags = ["--runtime-engine=builtin".to_owned()];
    let many = run(&world, &cache, &flags, json!({"mounts": mounts})).await;
    let warm = run(&world, &cache, &flags, json!({})).await;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "image not in the cache {:8.1} ms, in the cache {:.1} ms",
        ms(cold),
        ms(warm)
    );
    println!("{MOUNTS} mounts {:8.1} ms", ms(many));
}

struct Row {
    name: &'static str,
    flags: Vec<String>,
    reference: Box<dyn Fn(usize) -> Command>,
}

fn engines(world: &World, root: &Path) -> Vec<Row> {
    let oci = |runtime: &'static str| {
        let bundle = bundle(world, root, runtime);
        let reference = move |round: usize| {
            let mut command = Command::new(runtime);
            command.args(["run", "--bundle"]).arg(&bundle);
            command.arg(format!("overhead-{runtime}-{}-{round}", std::process::id()));
            command
        };
        Box::new(reference) as Box<dyn Fn(usize) -> Command>
    };
    let service = |name: &'static str, daemon: &'static daemons::Daemon| {
        let socket = format!("unix://{}", daemon.socket.display());
        let image = image_id(root);
        let reference = move |_: usize| {
            let mut command = Command::new(name);
            match name {
                "docker" => command.args(["-H", &socket]),
                _ => command.args(["--remote", "--url", &socket]),
            };
            command.args(["run", "--rm", "--network=none"]);
            if name == "podman" {
                // The default limits are higher than a machine without CAP_SYS_RESOURCE allows.
                command.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]);
            }
            command.args([&image, "/bin/true"]);
            command
        };
        Row {
            name,
            flags: vec![
                format!("--runtime-engine={name}"),
                format!("--docker-socket={}", daemon.socket.display()),
            ],
            reference: Box::new(reference),
        }
    };
    let sandbox = root.to_owned();
    let apptainer = move |_: usize| {
        let mut command = Command::new("apptainer");
        command
            .args(["-q", "exec", "--contain", "--userns"])
            .arg(&sandbox)
            .arg("/bin/true");
        command
    };
    vec![
        Row {
            name: "builtin (runc run)",
            flags: vec!["--runtime-engine=builtin".into()],
            reference: oci("runc"),
        },
        Row {
            name: "found by trial (runc run)",
            flags: vec!["--runtime-engine=auto".into()],
            reference: oci("runc"),
        },
        Row {
            // Without the option, crun refuses machines with hybrid control groups.
            name: "crun (runc run)",
            flags: vec!["--runtime-engine=oci".into(), "--oci-runtime=crun".into()],
            reference: oci("runc"),
        },
        Row {
            name: "runc",
            flags: vec!["--runtime-engine=oci".into(), "--oci-runtime=runc".into()],
            reference: oci("runc"),
        },
        Row {
            name: "apptainer",
            flags: vec!["--runtime-engine=apptainer".into()],
            reference: Box::new(apptainer),
        },
        service("docker", daemons::docker()),
        service("podman", daemons::podman()),
    ]
}

async fn run(world: &World, cache: &Path, flags: &[String], more: Value) -> Duration {
    let job = world.lock(&["/bin/true"], more).await;
    let mut program = world.program_with_cache(&job, cache);
    program.args(flags);
    let begin = Instant::now();
    let output = program.output().await.unwrap();
    let took = begin.elapsed();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let record = world.record(&job).await;
    assert_eq!(record.exit_code, Some(0), "{stderr}");
    took
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// The image's one layer, as crunch-run has unpacked it.
fn rootfs(cache: &Path) -> PathBuf {
    let layers = std::fs::read_dir(cache.join("layers")).unwrap().flatten();
    let mut found = layers.map(|entry| entry.path()).flat_map(|path| {
        let below = std::fs::read_dir(&path).into_iter().flatten().flatten();
        std::iter::once(path).chain(below.map(|entry| entry.path()))
    });
    found
        .find(|path| path.join("bin/busybox").exists())
        .expect("the unpacked layer")
}

/// The image's name is the hash of its configuration; daemons use it as image id.
fn image_id(root: &Path) -> String {
    let images = root.ancestors().find_map(|dir| {
        let images = dir.join("images");
        images.is_dir().then_some(images)
    });
    let mut names = std::fs::read_dir(images.expect("images beside layers"))
        .unwrap()
        .flatten();
    let name = names.next().expect("one image").file_name();
    let name = name.to_string_lossy();
    name.split('.')
        .next()
        .unwrap_or_default()
        .trim_start_matches("sha256:")
        .to_owned()
}

fn bundle(world: &World, root: &Path, runtime: &str) -> PathBuf {
    let bundle = world.dir().join(format!("bundle-{runtime}"));
    if !bundle.exists() {
        std::fs::create_dir(&bundle).unwrap();
        let made = Command::new(runtime)
            .arg("spec")
            .current_dir(&bundle)
            .status();
        assert!(made.expect("the runtime is installed").success());
        let config = bundle.join("config.json");
        let text = std::fs::read(&config).unwrap();
        let mut spec: Value = serde_json::from_slice(&text).unwrap();
        spec["process"]["terminal"] = false.into();
        spec["process"]["args"] = json!(["/bin/true"]);
        spec["root"]["path"] = root.to_str().unwrap().into();
        std::fs::write(&config, spec.to_string()).unwrap();
    }
    bundle
}

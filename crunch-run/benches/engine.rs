//! One `/bin/true` from creation to removal, by the built-in engine and by runc, from the same
//! files.

#[path = "../tests/integration/engine_lab/mod.rs"]
mod engine_lab;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use engine_lab::{Lab, exec, shell};

const ROUNDS: usize = 100;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let lab = Lab::new();
    let mut ours = Vec::new();
    let mut parts = [Duration::ZERO; 4];
    let mut theirs = Vec::new();
    let bundle = runc_bundle(&lab);
    for round in 0..ROUNDS {
        let begin = Instant::now();
        let (container, _, _) = lab.create(exec(&["/bin/true"])).await.unwrap();
        let created = begin.elapsed();
        container.start().await.unwrap();
        let started = begin.elapsed();
        container.wait().await.unwrap();
        let ended = begin.elapsed();
        container.remove().await.unwrap();
        let removed = begin.elapsed();
        ours.push(removed);
        for (sum, part) in
            parts
                .iter_mut()
                .zip([created, started - created, ended - started, removed - ended])
        {
            *sum += part;
        }

        let begin = Instant::now();
        let name = format!("engine-speed-{}-{round}", std::process::id());
        let done = Command::new("runc")
            .args(["run", "--bundle"])
            .arg(&bundle)
            .arg(name)
            .status()
            .expect("this measurement needs runc");
        assert!(done.success());
        theirs.push(begin.elapsed());
    }
    println!("{ROUNDS} times /bin/true        median     p90");
    for (name, times) in [("built-in engine", &mut ours), ("runc run", &mut theirs)] {
        times.sort_unstable();
        let at = |share: usize| times[times.len() * share / 100].as_secs_f64() * 1e3;
        println!("{name:20} {:7.1} ms {:7.1} ms", at(50), at(90));
    }
    for (name, sum) in ["create", "start", "wait", "remove"].iter().zip(parts) {
        println!(
            "  {name:10} {:6.1} ms on average",
            sum.as_secs_f64() * 1e3 / ROUNDS as f64
        );
    }

    let (container, _, _) = lab.create(shell("exec sleep 100")).await.unwrap();
    container.start().await.unwrap();
    let pid = container.pid().unwrap();
    let status = |pid: &str| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        line.unwrap_or_default()
            .trim_start_matches(':')
            .trim()
            .to_owned()
    };
    let keeper = status(&field(&status(&pid.to_string()), "PPid"));
    println!(
        "keeper: {} resident, of which {} its own; peak {}",
        field(&keeper, "VmRSS"),
        field(&keeper, "RssAnon"),
        field(&keeper, "VmHWM"),
    );
    container.remove().await.unwrap();
    println!("engine: {}", lab.engine.name());
}

/// An OCI bundle with the same root file system and runc's default specification.
fn runc_bundle(lab: &Lab) -> std::path::PathBuf {
    let bundle = lab.dir.path().join("bundle");
    fs::create_dir(&bundle).unwrap();
    let made = Command::new("runc")
        .args(["spec", "--bundle"])
        .arg(&bundle)
        .status()
        .expect("this measurement needs runc");
    assert!(made.success());
    let config = bundle.join("config.json");
    let mut spec: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = serde_json::json!(["/bin/true"]);
    spec["root"]["path"] = lab.image.layers[0].to_str().unwrap().into();
    fs::write(&config, spec.to_string()).unwrap();
    bundle
}

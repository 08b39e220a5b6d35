//! The whole of crunch-run for one `/bin/true`, and its parts, against a server in this process.

#[path = "../tests/integration/engine_lab/mod.rs"]
mod engine_lab;
#[path = "../tests/integration/run_lab/mod.rs"]
mod run_lab;

use std::collections::BTreeMap;
use std::time::Instant;

use run_lab::World;
use serde_json::json;

const ROUNDS: usize = 30;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let world = World::new().await;
    let mut whole = Vec::new();
    let mut parts: BTreeMap<usize, (String, Vec<f64>)> = BTreeMap::new();
    for round in 0..=ROUNDS {
        let job = world.lock(&["/bin/true"], json!({})).await;
        let begin = Instant::now();
        let finished = world.run(&job, &[]).await;
        let took = begin.elapsed().as_secs_f64() * 1e3;
        assert_eq!(finished.code, 0, "{}", finished.output);
        if round == 0 {
            // The first run unpacked the image.
            continue;
        }
        whole.push(took);
        let line = finished.output.lines().last().unwrap();
        let (_, line) = line.split_once("Milliseconds spent: ").unwrap();
        let list = line.split(';').next().unwrap();
        for (at, part) in list.split(", ").enumerate() {
            let (name, value) = part.rsplit_once(' ').unwrap();
            let entry = parts.entry(at).or_insert((name.to_owned(), Vec::new()));
            entry.1.push(value.parse().unwrap());
        }
    }
    println!("{ROUNDS} times crunch-run of /bin/true   median     p90");
    show("whole process", &mut whole);
    for (name, values) in parts.values_mut() {
        show(&format!("  {name}"), values);
    }

    let job = world.lock(&["sh", "-c", "sleep 1"], json!({})).await;
    let child = world.start(&job, &[]);
    world.until_running(&job).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id().unwrap())).unwrap();
    for name in ["VmHWM", "RssAnon", "Threads"] {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        println!(
            "{name:30} {}",
            line.unwrap_or_default().trim_start_matches(':').trim()
        );
    }
    assert_eq!(run_lab::finish(child).await.code, 0);
}

fn show(name: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let at = |share: usize| values[values.len() * share / 100];
    println!("{name:30} {:8.1} ms {:6.1} ms", at(50), at(90));
}

//! Saving outputs: ten thousand small files, and one of ten GiB, mostly holes. `CAPTURE_MIB=n` sets
//! another size.
//!
//! The baseline only reads and hashes the same number of bytes.

#[path = "../tests/integration/engine_lab/mod.rs"]
mod engine_lab;
#[path = "../tests/integration/large_lab/mod.rs"]
mod large_lab;
#[path = "../tests/integration/run_lab/mod.rs"]
mod run_lab;

use std::io::Read;
use std::time::{Duration, Instant};

use arvados_client::keep::BlockHash;
use large_lab::{Captured, MANY, MIB, can_run, run, sparse};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    if !can_run() {
        return;
    }
    let size = std::env::var("CAPTURE_MIB").map_or(10 << 10, |mib| mib.parse().expect("a number"));
    println!("output                        size       time       MB/s   times hashing   memory");
    show("10,000 small files", run(MANY).await);
    show(&format!("one file of {size} MiB"), run(&sparse(size)).await);
}

fn show(name: &str, captured: Captured) {
    let bytes = captured.manifest.total_size();
    let took = captured.took.as_secs_f64();
    println!(
        "{name:25} {:6} MiB {took:8.3} s {:10.0} {:15.1} {:4} MiB",
        bytes.div_ceil(MIB),
        bytes as f64 / took / 1e6,
        took / hashing(bytes).as_secs_f64(),
        captured.grown.div_ceil(MIB),
    );
}

/// Time to read and hash zeros with one thread, scaled from a smaller sample.
fn hashing(bytes: u64) -> Duration {
    let sample = bytes.min(512 * MIB);
    let mut zeros = std::io::repeat(0).take(sample);
    let mut block = vec![0; 64 << 20];
    let begin = Instant::now();
    loop {
        let mut filled = 0;
        while filled < block.len() {
            match zeros.read(&mut block[filled..]).expect("zeros") {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            break;
        }
        std::hint::black_box(BlockHash::of(&block[..filled]));
    }
    begin.elapsed().mul_f64(bytes as f64 / sample as f64)
}

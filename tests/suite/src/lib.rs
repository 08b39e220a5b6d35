//! What the end-to-end tests share: a fake scheduler and a proxy before the API server, both with
//! scripted faults; and the rule for tests that cannot run. The tests themselves are under
//! `tests/`.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub mod condor_lab;
pub mod fail_point_dir;
pub mod fake_sched;
pub mod faulty_mount;
pub mod health_page;
pub mod image;
pub mod lab;
pub mod process_limit;
pub mod process_usage;
pub mod processes;
pub mod program;
pub mod proxy;
pub mod slurm_lab;
pub mod small_disk;
pub mod stack;
pub mod start_log;

/// How long a test waits for one step before it fails. It is no promise of the programs: a machine
/// that does ten times as much beside the test takes less, and nextest ends a test later than this.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(240);

/// How long a test sleeps until it looks again for what it has been waiting for since `begun`: a
/// twentieth of that, between 20 and 250 ms. Many that wait must not slow what they wait for.
pub fn poll_pause(begun: Instant) -> Duration {
    let (shortest, longest) = (Duration::from_millis(20), Duration::from_millis(250));
    (begun.elapsed() / 20).clamp(shortest, longest)
}

/// The root of the checkout that these tests were built from.
pub fn workspace() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// All Rust files below a folder of the checkout, build output left out.
pub fn source_files(dir: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    find_sources(dir, &mut found);
    found
}

fn find_sources(dir: &std::path::Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory of the checkout") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            find_sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// The directory of Arvados' Python clients; they are installed once per target directory.
pub fn python_clients() -> PathBuf {
    printed_by("python-clients", &[])
}

/// The directory of Snakemake, likewise.
pub fn snakemake() -> PathBuf {
    printed_by("python-clients", &["snakemake"])
}

/// The root directory of an image in which a Python package runs, and the version of the package.
/// The package is among Arvados' clients, or in the environment that is named.
pub fn python_image(package: &str, environment: Option<&str>) -> (PathBuf, String) {
    let arguments: Vec<&str> = std::iter::once(package).chain(environment).collect();
    let root = printed_by("python-image", &arguments);
    let version = std::fs::read_to_string(root.with_file_name("version")).expect("a version");
    (root, version.trim_end().to_owned())
}

/// The path that a script of `tests/labs/` prints.
fn printed_by(script: &str, arguments: &[&str]) -> PathBuf {
    let script = workspace().join("tests/labs").join(script);
    let output = Command::new(script).args(arguments).output().expect("bash");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let path = String::from_utf8(output.stdout).expect("a path in UTF-8");
    path.trim_end().into()
}

/// Skips a test that cannot run here because of `reason`: says so in one line on stderr, which
/// starts with `SKIPPED: `. Panics where the variable `CI` is set: there no test may be skipped.
pub fn skip(reason: impl std::fmt::Display) {
    assert!(
        std::env::var_os("CI").is_none(),
        "CI is set, so this test must not be skipped: {reason}"
    );
    eprintln!("SKIPPED: {reason}");
    // Test runners hide the output of passed tests, so `make test` counts the lines of this file.
    if let Some(path) = std::env::var_os("SKIPPED_TESTS") {
        let name = std::env::var("NEXTEST_TEST_NAME");
        let test = name.unwrap_or_else(|_| std::thread::current().name().unwrap_or("?").to_owned());
        let file = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path);
        let mut file = file.expect("the file that SKIPPED_TESTS names");
        writeln!(file, "SKIPPED: {test}: {reason}").expect("a line in that file");
    }
}

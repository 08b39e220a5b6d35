//! Fail points of a test build, and their absence in any other build.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// An empty directory for one test.
fn empty_dir(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Builds `examples/pass.rs` without the feature in a directory of its own, because the build of
/// this test may have the feature.
#[test]
fn a_build_without_the_feature_has_no_points() {
    let (target, points) = (empty_dir("plain"), empty_dir("plain-points"));
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--locked"])
        .args(["--package", "fail-points", "--example", "pass"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{stderr}");
    let program = target.join("debug/examples/pass");
    fs::write(points.join("here"), "1").unwrap();
    let output = Command::new(&program)
        .env(fail_points::VARIABLE, &points)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "passed\n");
    let left: Vec<_> = fs::read_dir(&points)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["here"], "something was counted or noted");
    let name = fail_points::VARIABLE.as_bytes();
    let bytes = fs::read(&program).unwrap();
    assert!(!bytes.windows(name.len()).any(|part| part == name));
}

#[cfg(feature = "enabled")]
mod enabled {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// Run by the next test in separate processes.
    #[test]
    #[ignore = "it is a part of another test"]
    fn passes() {
        fail_points::fail_point("here");
    }

    #[test]
    fn the_nth_passing_kills_once_and_each_is_noted() {
        let points = empty_dir("enabled-points");
        fs::write(points.join("here"), "2").unwrap();
        let signals = [(); 4].map(|()| {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "enabled::passes", "--ignored"])
                .env(fail_points::VARIABLE, &points)
                .output();
            status.unwrap().status.signal()
        });
        assert_eq!(signals, [None, Some(9), None, None]);
        let lines = |file: &str| {
            let text = fs::read_to_string(points.join(file)).unwrap();
            text.lines().filter(|l| l.starts_with("here ")).count()
        };
        assert_eq!((lines("passed"), lines("killed")), (4, 1));
        assert!(!points.join("here").exists());
    }
}

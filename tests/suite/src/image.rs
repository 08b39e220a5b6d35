//! The image of these tests: only busybox, added to the server as a user adds an image.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::program::{binary, copy_program};

const NAME: &str = "busybox:test";

/// Adds it to the server that `environment` names; its name.
pub fn add(environment: &[(&str, String)], dir: &Path) -> String {
    let bin = dir.join("rootfs/bin");
    std::fs::create_dir_all(&bin).unwrap();
    let busybox = which("busybox").expect("busybox-static is not installed");
    copy_program(&busybox, &bin.join("busybox"));
    let applets = "sh cat echo nc sleep true env wc head tail dd mkdir ls ln grep id";
    for name in applets.split(' ') {
        symlink("busybox", bin.join(name)).unwrap();
    }
    // The layer is the same in every test and every run, so that a node caches it once.
    let touched = Command::new("find")
        .arg(dir.join("rootfs"))
        .args(["-exec", "touch", "-h", "-d", "@1", "{}", "+"])
        .status()
        .unwrap();
    assert!(touched.success());
    add_named(environment, NAME, &dir.join("rootfs"));
    NAME.to_owned()
}

/// Adds an image with the files of `root`.
pub fn add_named(environment: &[(&str, String)], name: &str, root: &Path) {
    let output = Command::new(binary("dispatch"))
        .args(["image", "add", name])
        .arg(root)
        .envs(environment.iter().map(|(k, v)| (k, v)))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn which(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

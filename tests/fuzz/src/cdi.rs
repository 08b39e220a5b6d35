//! Specifications of devices (CDI): no file makes the reader panic, and a device that it lists can
//! be given to a container, or is refused.

use std::fs;

use container_engine::gpu::Registry;

/// The first bit selects the form of the file.
pub fn check(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let dir = tempfile::tempdir_in("/dev/shm").expect("room in /dev/shm");
    let name = if first % 2 == 0 { "a.json" } else { "a.yaml" };
    fs::write(dir.path().join(name), rest).expect("a file");
    let registry = Registry::read(&[dir.path().to_owned()]);
    let _ = registry.problems();
    for id in ["nvidia.com/gpu=0", "nvidia.com/gpu=all", "0"] {
        if let Some(name) = registry.find(id, &["nvidia.com/gpu"]) {
            let _ = registry.access(&[name]);
        }
    }
    let _ = registry.with_node(&["nvidia.com/gpu"], "/dev/nvidia0");
    let _ = registry.not_described();
}

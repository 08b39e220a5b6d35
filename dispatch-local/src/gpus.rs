//! The GPUs of this machine, by their device files; no vendor tool is asked.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::load::Stack;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gpu {
    /// How it is spoken to.
    pub stack: Stack,
    /// Its number, as the vendor's tools and `crunch-run --gpu-ids` count.
    pub id: String,
}

/// The GPUs below `root` ("/", but for tests), without those that the environment of this process hides.
pub fn probe(root: &Path, environment: impl Fn(&str) -> Option<String>) -> Vec<Gpu> {
    let mut found = Vec::new();
    for (stack, there, visible) in [
        (Stack::Cuda, nvidia(root), "CUDA_VISIBLE_DEVICES"),
        (Stack::Rocm, amd(root), "ROCR_VISIBLE_DEVICES"),
    ] {
        let ids = match environment(visible) {
            // What a scheduler above us granted, by the names it used.
            Some(granted) => named(&granted, &there),
            None => there.iter().map(u32::to_string).collect(),
        };
        found.extend(ids.into_iter().map(|id| Gpu { stack, id }));
    }
    found
}

/// The granted ids; a number that is no GPU here hides itself and, as CUDA has it, all that follow.
fn named(granted: &str, there: &[u32]) -> Vec<String> {
    granted
        .split(',')
        .map(str::trim)
        .take_while(|id| match id.parse::<u32>() {
            Ok(number) => there.contains(&number),
            Err(_) => {
                !id.is_empty() && !there.is_empty() && !id.starts_with('-') && *id != "NoDevFiles"
            }
        })
        .map(str::to_owned)
        .collect()
}

/// `/dev/nvidia0`, `/dev/nvidia1`, …
fn nvidia(root: &Path) -> Vec<u32> {
    numbers(&root.join("dev"), |name| {
        name.strip_prefix("nvidia")?.parse().ok()
    })
}

/// GPU nodes of the kernel's compute topology, counted from 0 in its order; CPU nodes have the id 0.
fn amd(root: &Path) -> Vec<u32> {
    let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
    let gpus = numbers(&nodes, |name| name.parse().ok())
        .into_iter()
        .filter(|node| {
            let id = fs::read_to_string(nodes.join(node.to_string()).join("gpu_id"));
            id.is_ok_and(|id| !matches!(id.trim(), "" | "0"))
        });
    (0..gpus.count() as u32).collect()
}

fn numbers(dir: &Path, number: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let mut found: Vec<u32> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_by_their_files_and_hidden_by_the_environment() {
        let root = tempfile::tempdir().unwrap();
        let dev = root.path().join("dev");
        fs::create_dir_all(&dev).unwrap();
        for name in [
            "nvidia0",
            "nvidia10",
            "nvidia2",
            "nvidiactl",
            "nvidia-uvm",
            "null",
        ] {
            fs::write(dev.join(name), "").unwrap();
        }
        let nodes = root.path().join("sys/class/kfd/kfd/topology/nodes");
        for (node, id) in [("0", "0\n"), ("1", "4711\n"), ("2", "815\n")] {
            fs::create_dir_all(nodes.join(node)).unwrap();
            fs::write(nodes.join(node).join("gpu_id"), id).unwrap();
        }
        let ids = |variables: &[(&str, &str)]| -> Vec<String> {
            probe(root.path(), |name| {
                let found = variables.iter().find(|(n, _)| *n == name);
                found.map(|(_, value)| (*value).to_owned())
            })
            .into_iter()
            .map(|gpu| format!("{} {}", gpu.stack.as_str(), gpu.id))
            .collect()
        };
        assert_eq!(
            ids(&[]),
            ["cuda 0", "cuda 2", "cuda 10", "rocm 0", "rocm 1"]
        );
        let none = [("CUDA_VISIBLE_DEVICES", ""), ("ROCR_VISIBLE_DEVICES", "1")];
        assert_eq!(ids(&none), ["rocm 1"]);
        // As HTCondor hides GPUs from jobs without any.
        let hidden = [
            ("CUDA_VISIBLE_DEVICES", "10000"),
            ("ROCR_VISIBLE_DEVICES", ""),
        ];
        assert_eq!(ids(&hidden), [""; 0]);
        let uuid = [
            ("CUDA_VISIBLE_DEVICES", "GPU-8a5b,2"),
            ("ROCR_VISIBLE_DEVICES", ""),
        ];
        assert_eq!(ids(&uuid), ["cuda GPU-8a5b", "cuda 2"]);
    }
}

//! Finds the GPUs of this machine by their device files, without a vendor's tool.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::resources::GpuStack;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gpu {
    pub stack: GpuStack,
    /// Index as in the vendor's tools and `crunch-run --gpu-ids`.
    pub id: String,
}

/// The numbers of CUDA and ROCm GPUs among these.
pub fn count<'a>(gpus: impl IntoIterator<Item = &'a Gpu>) -> [u64; 2] {
    gpus.into_iter()
        .fold([0, 0], |[cuda, rocm], gpu| match gpu.stack {
            GpuStack::Cuda => [cuda + 1, rocm],
            GpuStack::Rocm => [cuda, rocm + 1],
        })
}

/// The GPUs below `root` ("/" outside tests), without those that environment variables of this
/// process hide.
pub fn probe(root: &Path, environment: impl Fn(&str) -> Option<String>) -> Vec<Gpu> {
    let mut found = Vec::new();
    for (stack, there, visible) in [
        (GpuStack::Cuda, nvidia(root), "CUDA_VISIBLE_DEVICES"),
        (GpuStack::Rocm, amd(root), "ROCR_VISIBLE_DEVICES"),
    ] {
        let ids = match environment(visible) {
            // Granted by an outer scheduler, with the names that it used.
            Some(granted) => granted_ids(&granted, &there),
            None => there.iter().map(u32::to_string).collect(),
        };
        found.extend(ids.into_iter().map(|id| Gpu { stack, id }));
    }
    found
}

/// The granted ids. As in CUDA, an unknown index hides itself and all ids after it.
fn granted_ids(granted: &str, there: &[u32]) -> Vec<String> {
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
    device_numbers(&root.join("dev"), |name| {
        name.strip_prefix("nvidia")?.parse().ok()
    })
}

/// GPU nodes of the kernel's compute topology, counted from 0 in its order; CPU nodes have the id
/// 0.
fn amd(root: &Path) -> Vec<u32> {
    let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
    let gpus = device_numbers(&nodes, |name| name.parse().ok())
        .into_iter()
        .filter(|node| {
            let id = fs::read_to_string(nodes.join(node.to_string()).join("gpu_id"));
            id.is_ok_and(|id| !matches!(id.trim(), "" | "0"))
        });
    (0..gpus.count() as u32).collect()
}

fn device_numbers(dir: &Path, number: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
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
        // Variables by which HTCondor hides GPUs from jobs without any.
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

//! AMD's GPUs without CDI: `/dev/kfd`, which all of them share, and the render node of each.

use std::fs;
use std::path::Path;

use super::{GpuAccess, HostGpus, numbers};
use crate::StartError;

/// Minor number of the first render node.
const FIRST_RENDER_MINOR: u64 = 128;

impl HostGpus {
    pub(super) fn rocm(&self, ids: &[String]) -> Result<GpuAccess, StartError> {
        let mut access = GpuAccess::default();
        let known = kfd_gpus(&self.kfd_nodes);
        for id in ids {
            let index: u32 = id.parse().map_err(|_| {
                StartError::gpu_missing(id, "only GPU numbers are understood for ROCm where no CDI specification describes the GPUs")
            })?;
            let number = match known.as_slice() {
                [] => u64::from(index) + FIRST_RENDER_MINOR,
                known => {
                    let reason = format!("the kernel knows {} of AMD's GPUs here", known.len());
                    let gpu = known.get(index as usize);
                    gpu.ok_or_else(|| StartError::gpu_missing(id, reason))?.0
                }
            };
            access.add_device(self.required(id, &format!("dri/renderD{number}"))?);
        }
        access.add_device(self.required(&ids.join(","), "kfd")?);
        access
            .environment
            .push(("ROCR_VISIBLE_DEVICES".into(), numbers(ids.len())));
        Ok(access)
    }
}

/// The minor number of the render node and the `properties` of each GPU, in ROCm's order. CPUs in
/// the same list have no render node.
pub fn kfd_gpus(nodes: &Path) -> Vec<(u64, String)> {
    let entries = fs::read_dir(nodes).into_iter().flatten().flatten();
    let gpus = entries.filter_map(|entry| {
        let position: u32 = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("properties")).ok()?;
        let render = parse_property(&text, "drm_render_minor").filter(|minor| *minor > 0)?;
        Some((position, render, text))
    });
    let mut gpus: Vec<_> = gpus.collect();
    gpus.sort_unstable();
    gpus.into_iter()
        .map(|(_, render, text)| (render, text))
        .collect()
}

/// A number from a `properties` file of the kernel.
pub fn parse_property(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok())?
    })
}

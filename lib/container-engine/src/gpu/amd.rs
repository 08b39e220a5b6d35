//! AMD's GPUs without CDI: `/dev/kfd`, which all of them share, and the render node of each.

use std::fs;

use super::{GpuAccess, HostGpus, numbers};
use crate::StartError;

/// Minor number of the first render node.
const FIRST_RENDER_MINOR: u32 = 128;

impl HostGpus {
    pub(super) fn rocm(&self, ids: &[String]) -> Result<GpuAccess, StartError> {
        let mut access = GpuAccess::default();
        let known = self.render_nodes();
        for id in ids {
            let index: u32 = id.parse().map_err(|_| StartError::GpuMissing {
                id: id.clone(),
                reason: "only GPU numbers are understood for ROCm where no CDI specification describes the GPUs".into(),
            })?;
            let number = match known.as_slice() {
                [] => index.saturating_add(FIRST_RENDER_MINOR),
                known => *known
                    .get(index as usize)
                    .ok_or_else(|| StartError::GpuMissing {
                        id: id.clone(),
                        reason: format!("the kernel knows {} of AMD's GPUs here", known.len()),
                    })?,
            };
            access.add_device(self.required(id, &format!("dri/renderD{number}"))?);
        }
        access.add_device(self.required(&ids.join(","), "kfd")?);
        access
            .environment
            .push(("ROCR_VISIBLE_DEVICES".into(), numbers(ids.len())));
        Ok(access)
    }

    /// Render nodes of the GPUs in ROCm's order. CPUs in the same list have none.
    fn render_nodes(&self) -> Vec<u32> {
        let mut numbers: Vec<(u32, u32)> = fs::read_dir(&self.kfd_nodes)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let position = entry.file_name().to_str()?.parse().ok()?;
                let text = fs::read_to_string(entry.path().join("properties")).ok()?;
                let render = parse_property(&text, "drm_render_minor")?;
                (render > 0).then_some((position, u32::try_from(render).ok()?))
            })
            .collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|(_, render)| render).collect()
    }
}

/// A number from a `properties` file of the kernel.
pub fn parse_property(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok())?
    })
}

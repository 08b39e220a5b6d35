//! The expression that a job's GPUs must meet, for `require_gpus`. Pure.

use dispatch_core::model::resources::ResourceRequest;

const MIB: u64 = 1 << 20;

/// Minimum memory in MiB of each GPU, and with CUDA its minimum capability and driver version.
/// Empty: any GPU. Of several capabilities, which are alternatives, the lowest counts.
///
/// `gpus_minimum_memory` and the like would reject a GPU without the attribute; a partition of a
/// GPU has no capability. crunch-run checks the GPU that it is given.
pub(crate) fn require_gpus_expression(needs: &ResourceRequest) -> String {
    let Some(model) = needs.gpu_model.as_deref() else {
        return String::new();
    };
    let is_cuda = needs.gpu_stack == "cuda";
    let version = |text: &str| {
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    let targets = model.hardware_target.iter();
    let lowest = targets.filter_map(|target| version(target)).min();
    let driver = version(&model.driver_version);
    let memory = (model.vram > 0).then(|| ("GlobalMemoryMb", model.vram.div_ceil(MIB).to_string()));
    let capability = lowest.filter(|_| is_cuda);
    let capability = capability.map(|(major, minor)| ("Capability", format!("{major}.{minor}")));
    let driver = driver.filter(|_| is_cuda);
    let driver = driver.map(|(major, minor)| {
        let number = u64::from(major) * 1000 + u64::from(minor) * 10;
        ("MaxSupportedVersion", number.to_string())
    });
    let rules = [memory, capability, driver].into_iter().flatten();
    let rules = rules.map(|(name, least)| format!("({name}?:{least})>={least}"));
    rules.collect::<Vec<_>>().join("&&")
}

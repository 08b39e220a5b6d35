//! What the GPUs of a job must have, as HTCondor is told it.

use dispatch_core::needs::Needs;

const MIB: u64 = 1 << 20;

/// What each GPU must have at least: MiB of memory, and with CUDA its capability, and the version that the driver takes.
/// Empty: anything. Of several capabilities, which are a list to choose from, the lowest.
///
/// Not `gpus_minimum_memory` and the like: a GPU that does not say (a part of one has no capability) would never do.
/// crunch-run looks at the one it is given.
pub(super) fn rule(needs: &Needs) -> String {
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

//! Checks that granted GPUs satisfy the request: driver, hardware, memory. Pure.

use arvados_client::resources::Gpu;

use super::{GpuError, GpuInfo};
use container_engine::GpuStack;

/// Maximum share of GPU memory that the driver and ECC reserve, in percent: a card of "24 GiB"
/// shows 22.5.
const MAX_RESERVED_PERCENT: u64 = 7;
/// Minimum major number of an NVIDIA driver release; smaller numbers are CUDA or ROCm versions.
const MIN_DRIVER_RELEASE: u32 = 100;

/// Returns a note for each property that is unknown.
pub fn check_requirements(
    request: &Gpu,
    stack: GpuStack,
    ids: &[String],
    gpus: &[GpuInfo],
) -> Result<Vec<String>, GpuError> {
    let mut notes = Vec::new();
    for id in ids {
        let Some(gpu) = find_gpu(id, gpus) else {
            notes.push(format!(
                "nothing is known of GPU {id}, so that its driver, hardware and memory are not compared with what the container asks for"
            ));
            continue;
        };
        for found in [
            match_driver(request, stack, gpu),
            match_hardware(request, stack, gpu),
            match_memory(request, gpu),
        ] {
            match found {
                Match::Yes => {}
                Match::Unknown(what) => notes.push(format!(
                    "the {what} of GPU {id} is not known, and so not compared with what the container asks for"
                )),
                Match::No { wanted, actual } => {
                    return Err(GpuError::Unsuitable {
                        id: gpu.label(id),
                        wanted,
                        actual,
                    });
                }
            }
        }
    }
    Ok(notes)
}

/// Finds a GPU by index, by UUID or its prefix, or by either name in a CDI specification.
pub fn find_gpu<'a>(id: &str, gpus: &'a [GpuInfo]) -> Option<&'a GpuInfo> {
    let id = match id.split_once('=') {
        Some(("nvidia.com/gpu" | "amd.com/gpu", name)) => name,
        Some(_) => return None,
        None => id,
    };
    if let Ok(index) = id.parse::<u32>() {
        return gpus.iter().find(|gpu| gpu.index == index);
    }
    let mut found = gpus
        .iter()
        .filter(|gpu| !id.is_empty() && gpu.uuid.as_ref().is_some_and(|u| u.starts_with(id)));
    found.next().filter(|_| found.next().is_none())
}

enum Match {
    Yes,
    Unknown(&'static str),
    No { wanted: String, actual: String },
}

fn match_driver(request: &Gpu, stack: GpuStack, gpu: &GpuInfo) -> Match {
    let Some(wanted) = version(&request.driver_version) else {
        return match request.driver_version.is_empty() {
            true => Match::Yes,
            false => Match::Unknown("fitness of the driver"),
        };
    };
    let (name, actual) = match stack {
        _ if wanted.0 >= MIN_DRIVER_RELEASE => ("driver", &gpu.release),
        GpuStack::Cuda => ("CUDA", &gpu.interface),
        GpuStack::Rocm => ("ROCm", &gpu.interface),
    };
    let Some(actual) = actual else {
        return Match::Unknown("driver's version");
    };
    match version(actual) {
        None => Match::Unknown("driver's version"),
        Some(number) if number >= wanted => Match::Yes,
        Some(_) => Match::No {
            wanted: format!("{name} {} or newer", request.driver_version),
            actual: format!("its driver is for {name} {actual}"),
        },
    }
}

/// For CUDA, one target is the minimum, and several are alternatives. ROCm programs are built for
/// single targets.
fn match_hardware(request: &Gpu, stack: GpuStack, gpu: &GpuInfo) -> Match {
    let targets: Vec<&str> = request.hardware_target.iter().map(String::as_str).collect();
    let targets: Vec<&str> = targets.into_iter().filter(|t| !t.is_empty()).collect();
    if targets.is_empty() {
        return Match::Yes;
    }
    let Some(actual) = &gpu.target else {
        return Match::Unknown("hardware target");
    };
    let (fits, wanted) = match (stack, targets.as_slice()) {
        (GpuStack::Cuda, [least]) => {
            let (Some(least_number), Some(number)) = (version(least), version(actual)) else {
                return Match::Unknown("hardware target");
            };
            (number >= least_number, format!("{least} or newer"))
        }
        _ => (targets.contains(&actual.as_str()), targets.join(" or ")),
    };
    match fits {
        true => Match::Yes,
        false => Match::No {
            wanted: format!("hardware target {wanted}"),
            actual: format!("its target is {actual}"),
        },
    }
}

fn match_memory(request: &Gpu, gpu: &GpuInfo) -> Match {
    match gpu.memory {
        _ if request.vram == 0 => Match::Yes,
        None => Match::Unknown("memory"),
        Some(actual) if actual >= request.vram / 100 * (100 - MAX_RESERVED_PERCENT) => Match::Yes,
        Some(actual) => Match::No {
            wanted: format!("{} bytes of memory", request.vram),
            actual: format!("it has {actual}"),
        },
    }
}

/// `12.4`, and the first two numbers of `535.104.05`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next().map_or(Some(0), |minor| minor.parse().ok())?;
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Vec<GpuInfo> {
        let gpu = |index, uuid: &str| GpuInfo {
            index,
            uuid: Some(uuid.to_owned()),
            model: Some("NVIDIA L4".into()),
            release: Some("535.104.05".into()),
            interface: Some("12.2".into()),
            target: Some("8.9".into()),
            memory: Some(23034 << 20),
        };
        vec![gpu(0, "GPU-aa11"), gpu(1, "GPU-aa22")]
    }

    fn request(driver: &str, targets: &[&str], vram: u64) -> Gpu {
        Gpu {
            device_count: 1,
            driver_version: driver.into(),
            hardware_target: targets.iter().map(|t| (*t).to_owned()).collect(),
            vram,
            ..Gpu::default()
        }
    }

    #[test]
    fn what_is_asked_for_is_compared_with_what_is_there() {
        const GIB: u64 = 1 << 30;
        for (request, expected) in [
            (request("", &[], 0), None),
            (request("12.2", &["8.9"], 22 * GIB), None),
            (request("11.8", &["8.0"], 0), None),
            (
                request("12.10", &[], 0),
                Some("CUDA 12.10 or newer, but its driver is for CUDA 12.2"),
            ),
            (request("13", &[], 0), Some("CUDA 13 or newer")),
            // Larger numbers mean the driver's own release.
            (request("535.54", &[], 0), None),
            (
                request("550.1", &[], 0),
                Some("driver 550.1 or newer, but its driver is for driver 535.104.05"),
            ),
            // One target is the minimum; several are alternatives.
            (
                request("", &["9.0"], 0),
                Some("hardware target 9.0 or newer, but its target is 8.9"),
            ),
            (request("", &["7.5", "8.9"], 0), None),
            (
                request("", &["8.0", "9.0"], 0),
                Some("hardware target 8.0 or 9.0"),
            ),
            (request("", &[""], 0), None),
            // A card of 24 GiB shows a little less.
            (request("", &[], 24 * GIB), None),
            (
                request("", &[], 25 * GIB),
                Some("26843545600 bytes of memory, but it has 24152899584"),
            ),
        ] {
            let found = check_requirements(&request, GpuStack::Cuda, &["1".into()], &node());
            match expected {
                None => assert_eq!(found, Ok(Vec::new()), "{request:?}"),
                Some(words) => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains(words), "{error}");
                    assert!(error.starts_with("GPU 1 (NVIDIA L4)"), "{error}");
                }
            }
        }
    }

    #[test]
    fn rocm_s_targets_are_exact() {
        let node = [GpuInfo {
            target: Some("gfx90a".into()),
            ..node()[0].clone()
        }];
        let fits = |targets: &[&str]| {
            check_requirements(
                &request("", targets, 0),
                GpuStack::Rocm,
                &["0".into()],
                &node,
            )
            .is_ok()
        };
        assert!(fits(&["gfx90a"]) && fits(&["gfx908", "gfx90a"]));
        assert!(!fits(&["gfx908"]) && !fits(&["gfx1100"]));
    }

    #[test]
    fn what_is_not_known_is_a_remark() {
        let wanted = request("12.4", &["9.0"], 1 << 30);
        let notes = |ids: &[&str], gpus: &[GpuInfo]| {
            let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
            check_requirements(&wanted, GpuStack::Cuda, &ids, gpus).unwrap()
        };
        assert_eq!(notes(&["0", "1"], &[]).len(), 2);
        let bare = [GpuInfo::default()];
        let unchecked = notes(&["0"], &bare);
        for words in ["driver's version", "hardware target", "memory"] {
            assert_eq!(unchecked.iter().filter(|s| s.contains(words)).count(), 1);
        }
        // Properties that the request does not name may be unknown.
        let nothing =
            check_requirements(&request("", &[], 0), GpuStack::Cuda, &["0".into()], &bare);
        assert_eq!(nothing, Ok(Vec::new()));
    }

    #[test]
    fn a_gpu_has_several_names() {
        let gpus = node();
        for (id, expected) in [
            ("0", Some(0)),
            ("1", Some(1)),
            ("2", None),
            ("GPU-aa22", Some(1)),
            ("GPU-aa2", Some(1)),
            ("GPU-aa", None),
            ("nvidia.com/gpu=1", Some(1)),
            ("nvidia.com/gpu=GPU-aa11", Some(0)),
            ("lab.example/gpu=1", None),
            ("MIG-77", None),
            ("", None),
        ] {
            let found = find_gpu(id, &gpus).map(|gpu| gpu.index);
            assert_eq!(found, expected, "{id}");
        }
    }
}

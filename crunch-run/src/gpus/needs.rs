//! Whether the granted GPUs are what the container asks for: driver, hardware, memory. Pure.

use arvados_client::resources::Gpu;

use super::{Facts, GpuError};
use crate::engine::GpuStack;

/// What driver and error correction keep of a card's memory, at most: one of "24 GiB" shows 22.5.
const KEPT_PER_CENT: u64 = 7;
/// A driver's own releases have larger numbers than the versions of CUDA or ROCm that it knows.
const FIRST_RELEASE: u32 = 100;

/// A remark for each thing that cannot be told.
pub fn check(
    wish: &Gpu,
    stack: GpuStack,
    ids: &[String],
    known: &[Facts],
) -> Result<Vec<String>, GpuError> {
    let mut remarks = Vec::new();
    for id in ids {
        let Some(facts) = facts_of(id, known) else {
            remarks.push(format!(
                "nothing is known of GPU {id}, so that its driver, hardware and memory are not compared with what the container asks for"
            ));
            continue;
        };
        for found in [
            driver(wish, stack, facts),
            hardware(wish, stack, facts),
            memory(wish, facts),
        ] {
            match found {
                Fit::Yes => {}
                Fit::Unknown(what) => remarks.push(format!(
                    "the {what} of GPU {id} is not known, and so not compared with what the container asks for"
                )),
                Fit::No { wanted, there } => {
                    return Err(GpuError::Unfit {
                        id: facts.shown(id),
                        wanted,
                        there,
                    });
                }
            }
        }
    }
    Ok(remarks)
}

/// By index, UUID or its beginning, or the name of either in a CDI specification of the known vendors.
pub fn facts_of<'a>(id: &str, known: &'a [Facts]) -> Option<&'a Facts> {
    let id = match id.split_once('=') {
        Some(("nvidia.com/gpu" | "amd.com/gpu", name)) => name,
        Some(_) => return None,
        None => id,
    };
    if let Ok(index) = id.parse::<u32>() {
        return known.iter().find(|gpu| gpu.index == index);
    }
    let mut found = known
        .iter()
        .filter(|gpu| !id.is_empty() && gpu.uuid.as_ref().is_some_and(|u| u.starts_with(id)));
    found.next().filter(|_| found.next().is_none())
}

enum Fit {
    Yes,
    Unknown(&'static str),
    No { wanted: String, there: String },
}

fn driver(wish: &Gpu, stack: GpuStack, facts: &Facts) -> Fit {
    let Some(wanted) = version(&wish.driver_version) else {
        return match wish.driver_version.is_empty() {
            true => Fit::Yes,
            false => Fit::Unknown("fitness of the driver"),
        };
    };
    let (name, there) = match stack {
        _ if wanted.0 >= FIRST_RELEASE => ("driver", &facts.release),
        GpuStack::Cuda => ("CUDA", &facts.interface),
        GpuStack::Rocm => ("ROCm", &facts.interface),
    };
    let Some(there) = there else {
        return Fit::Unknown("driver's version");
    };
    match version(there) {
        None => Fit::Unknown("driver's version"),
        Some(number) if number >= wanted => Fit::Yes,
        Some(_) => Fit::No {
            wanted: format!("{name} {} or newer", wish.driver_version),
            there: format!("its driver is for {name} {there}"),
        },
    }
}

/// For CUDA one target is the least that will do, and several are those that will. ROCm's programs are built for
/// each target by itself.
fn hardware(wish: &Gpu, stack: GpuStack, facts: &Facts) -> Fit {
    let targets: Vec<&str> = wish.hardware_target.iter().map(String::as_str).collect();
    let targets: Vec<&str> = targets.into_iter().filter(|t| !t.is_empty()).collect();
    if targets.is_empty() {
        return Fit::Yes;
    }
    let Some(there) = &facts.target else {
        return Fit::Unknown("hardware target");
    };
    let (fits, wanted) = match (stack, targets.as_slice()) {
        (GpuStack::Cuda, [least]) => {
            let (Some(least_number), Some(number)) = (version(least), version(there)) else {
                return Fit::Unknown("hardware target");
            };
            (number >= least_number, format!("{least} or newer"))
        }
        _ => (targets.contains(&there.as_str()), targets.join(" or ")),
    };
    match fits {
        true => Fit::Yes,
        false => Fit::No {
            wanted: format!("hardware target {wanted}"),
            there: format!("its target is {there}"),
        },
    }
}

fn memory(wish: &Gpu, facts: &Facts) -> Fit {
    match facts.memory {
        _ if wish.vram == 0 => Fit::Yes,
        None => Fit::Unknown("memory"),
        Some(there) if there >= wish.vram / 100 * (100 - KEPT_PER_CENT) => Fit::Yes,
        Some(there) => Fit::No {
            wanted: format!("{} bytes of memory", wish.vram),
            there: format!("it has {there}"),
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

    fn node() -> Vec<Facts> {
        let gpu = |index, uuid: &str| Facts {
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

    fn wish(driver: &str, targets: &[&str], vram: u64) -> Gpu {
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
        for (wish, expected) in [
            (wish("", &[], 0), None),
            (wish("12.2", &["8.9"], 22 * GIB), None),
            (wish("11.8", &["8.0"], 0), None),
            (
                wish("12.10", &[], 0),
                Some("CUDA 12.10 or newer, but its driver is for CUDA 12.2"),
            ),
            (wish("13", &[], 0), Some("CUDA 13 or newer")),
            // Larger numbers mean the driver's own release.
            (wish("535.54", &[], 0), None),
            (
                wish("550.1", &[], 0),
                Some("driver 550.1 or newer, but its driver is for driver 535.104.05"),
            ),
            // One target is the least, several are all that will do.
            (
                wish("", &["9.0"], 0),
                Some("hardware target 9.0 or newer, but its target is 8.9"),
            ),
            (wish("", &["7.5", "8.9"], 0), None),
            (
                wish("", &["8.0", "9.0"], 0),
                Some("hardware target 8.0 or 9.0"),
            ),
            (wish("", &[""], 0), None),
            // A card of 24 GiB shows a little less.
            (wish("", &[], 24 * GIB), None),
            (
                wish("", &[], 25 * GIB),
                Some("26843545600 bytes of memory, but it has 24152899584"),
            ),
        ] {
            let found = check(&wish, GpuStack::Cuda, &["1".into()], &node());
            match expected {
                None => assert_eq!(found, Ok(Vec::new()), "{wish:?}"),
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
        let node = [Facts {
            target: Some("gfx90a".into()),
            ..node()[0].clone()
        }];
        let fits = |targets: &[&str]| {
            check(&wish("", targets, 0), GpuStack::Rocm, &["0".into()], &node).is_ok()
        };
        assert!(fits(&["gfx90a"]) && fits(&["gfx908", "gfx90a"]));
        assert!(!fits(&["gfx908"]) && !fits(&["gfx1100"]));
    }

    #[test]
    fn what_is_not_known_is_a_remark() {
        let asked = wish("12.4", &["9.0"], 1 << 30);
        let remarks = |ids: &[&str], known: &[Facts]| {
            let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
            check(&asked, GpuStack::Cuda, &ids, known).unwrap()
        };
        assert_eq!(remarks(&["0", "1"], &[]).len(), 2);
        let bare = [Facts::default()];
        let said = remarks(&["0"], &bare);
        for words in ["driver's version", "hardware target", "memory"] {
            assert_eq!(said.iter().filter(|s| s.contains(words)).count(), 1);
        }
        // What nobody asks for needs not be known.
        let nothing = check(&wish("", &[], 0), GpuStack::Cuda, &["0".into()], &bare);
        assert_eq!(nothing, Ok(Vec::new()));
    }

    #[test]
    fn a_gpu_has_several_names() {
        let known = node();
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
            let found = facts_of(id, &known).map(|facts| facts.index);
            assert_eq!(found, expected, "{id}");
        }
    }
}

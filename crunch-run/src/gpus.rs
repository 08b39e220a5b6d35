//! Which GPUs this job was granted: by the flags, or by what the scheduler put into the environment. Pure.

use arvados_client::resources::Gpu;

use crate::engine::{GpuGrant, GpuStack};

/// Where schedulers say it, most specific first.
const CUDA: [&str; 3] = [
    "CUDA_VISIBLE_DEVICES",
    "_CONDOR_AssignedGPUs",
    "SLURM_JOB_GPUS",
];
const ROCM: [&str; 4] = [
    "ROCR_VISIBLE_DEVICES",
    "AMD_VISIBLE_DEVICES",
    "_CONDOR_AssignedGPUs",
    "SLURM_JOB_GPUS",
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error(
        "the container asks for {wanted} GPUs, and the scheduler granted this job {granted} ({evidence})"
    )]
    TooFew {
        wanted: u32,
        granted: usize,
        evidence: String,
    },
    #[error("the container asks for GPUs of kind \"{stack}\"; crunch-run knows cuda and rocm")]
    UnknownStack { stack: String },
    #[error(
        "the container asks for {wanted} GPUs, and the scheduler granted this job {granted} ones"
    )]
    OtherStack {
        wanted: &'static str,
        granted: &'static str,
    },
}

/// What the container gets. Without a wish it gets none, whatever was granted.
pub fn grant(
    wish: &Gpu,
    flags: Option<GpuGrant>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<GpuGrant>, GpuError> {
    if wish.device_count == 0 {
        return Ok(None);
    }
    let (stack, names) = match wish.stack.as_str() {
        "cuda" => (GpuStack::Cuda, &CUDA[..]),
        "rocm" => (GpuStack::Rocm, &ROCM[..]),
        other => {
            return Err(GpuError::UnknownStack {
                stack: other.to_owned(),
            });
        }
    };
    let (granted, evidence) = match flags {
        Some(granted) if granted.stack != stack => {
            return Err(GpuError::OtherStack {
                wanted: word(stack),
                granted: word(granted.stack),
            });
        }
        Some(granted) => (granted.ids, "--gpu-ids".to_owned()),
        None => names
            .iter()
            .find_map(|name| Some((ids(&env(name)?)?, (*name).to_owned())))
            .unwrap_or_else(|| {
                (
                    Vec::new(),
                    format!("neither --gpu-ids nor {} is set", names.join(" nor ")),
                )
            }),
    };
    if granted.len() < wish.device_count as usize {
        return Err(GpuError::TooFew {
            wanted: wish.device_count,
            granted: granted.len(),
            evidence,
        });
    }
    Ok(Some(GpuGrant {
        stack,
        ids: granted,
    }))
}

fn word(stack: GpuStack) -> &'static str {
    match stack {
        GpuStack::Cuda => "cuda",
        GpuStack::Rocm => "rocm",
    }
}

/// A list like `0,1`, `GPU-uuid`, or HTCondor's `CUDA0,CUDA1`; `None` if it names no device.
fn ids(list: &str) -> Option<Vec<String>> {
    let ids: Vec<String> = list
        .split(',')
        .map(str::trim)
        .filter(|id| !id.is_empty() && !matches!(*id, "-1" | "none" | "NoDevFiles" | "void"))
        .map(|id| {
            let number = ["CUDA", "OCL"]
                .iter()
                .find_map(|kind| id.strip_prefix(kind));
            number.unwrap_or(id).to_owned()
        })
        .collect();
    (!ids.is_empty()).then_some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(stack: &str, device_count: u32) -> Gpu {
        Gpu {
            stack: stack.into(),
            device_count,
            ..Gpu::default()
        }
    }

    fn granted(
        wish: &Gpu,
        flags: Option<(GpuStack, &[&str])>,
        env: &[(&str, &str)],
    ) -> Result<Vec<String>, GpuError> {
        let flags = flags.map(|(stack, ids)| GpuGrant {
            stack,
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        });
        let look = |name: &str| {
            env.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        };
        grant(wish, flags, look).map(|g| g.map(|g| g.ids).unwrap_or_default())
    }

    #[test]
    fn flags_go_before_the_environment_and_nobody_gets_what_he_did_not_ask_for() {
        let env = [
            ("CUDA_VISIBLE_DEVICES", "3,4"),
            ("ROCR_VISIBLE_DEVICES", "5"),
        ];
        let flags = Some((GpuStack::Cuda, &["0", "1"][..]));
        let none: [&str; 0] = [];
        assert_eq!(granted(&wish("", 0), flags, &env).unwrap(), none);
        assert_eq!(granted(&wish("cuda", 2), flags, &env).unwrap(), ["0", "1"]);
        assert_eq!(granted(&wish("cuda", 2), None, &env).unwrap(), ["3", "4"]);
        assert_eq!(granted(&wish("rocm", 1), None, &env).unwrap(), ["5"]);
        let condor = [
            ("CUDA_VISIBLE_DEVICES", ""),
            ("_CONDOR_AssignedGPUs", "CUDA0, GPU-8f2"),
        ];
        assert_eq!(
            granted(&wish("cuda", 2), None, &condor).unwrap(),
            ["0", "GPU-8f2"]
        );
    }

    #[test]
    fn too_little_is_said() {
        let message = |wish: &Gpu, flags, env: &[(&str, &str)]| {
            granted(wish, flags, env).unwrap_err().to_string()
        };
        assert_eq!(
            message(&wish("cuda", 2), None, &[("CUDA_VISIBLE_DEVICES", "0")]),
            "the container asks for 2 GPUs, and the scheduler granted this job 1 (CUDA_VISIBLE_DEVICES)"
        );
        assert!(message(&wish("cuda", 1), None, &[]).contains("neither --gpu-ids nor"));
        assert!(message(&wish("tpu", 1), None, &[]).contains("\"tpu\""));
        let rocm = Some((GpuStack::Rocm, &["0"][..]));
        assert!(message(&wish("cuda", 1), rocm, &[]).contains("rocm ones"));
    }
}

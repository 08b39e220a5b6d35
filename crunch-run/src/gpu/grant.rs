//! Finds the GPUs that the scheduler granted to this job. In: flags, environment variables. Out: a
//! [`GpuGrant`], or why it does not satisfy the request.

use arvados_client::resources::Gpu;

use container_engine::{GpuGrant, GpuStack};

/// Environment variables with granted NVIDIA GPUs, the most specific first.
const CUDA_VARIABLES: [&str; 3] = [
    "CUDA_VISIBLE_DEVICES",
    "_CONDOR_AssignedGPUs",
    "SLURM_JOB_GPUS",
];
/// Variables with the node's own indices. With ConstrainDevices, Slurm renumbers
/// `CUDA_VISIBLE_DEVICES` from 0, but device nodes are named by the node's indices.
const SLURM_NODE_VARIABLES: [&str; 2] = ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];
const ROCM_VARIABLES: [&str; 4] = [
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
    #[error("GPU {id} is not what the container asks for: {wanted}, but {actual}")]
    Unsuitable {
        id: String,
        wanted: String,
        actual: String,
    },
    #[error(
        "the container asks for {wanted} GPUs, and the scheduler granted this job {granted} ones"
    )]
    OtherStack {
        wanted: &'static str,
        granted: &'static str,
    },
}

/// The GPUs of a container, as result.json names them.
#[derive(Debug, Default)]
pub struct PreparedGpus {
    pub ids: Vec<String>,
    /// Models of the GPUs, where known.
    pub models: Vec<Option<String>>,
}

/// Returns the GPUs for a container. A container that requests none gets none.
pub fn grant(
    request: &Gpu,
    flags: Option<GpuGrant>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<GpuGrant>, GpuError> {
    if request.device_count == 0 {
        return Ok(None);
    }
    let (stack, names) = match request.stack.as_str() {
        "cuda" => (GpuStack::Cuda, &CUDA_VARIABLES[..]),
        "rocm" => (GpuStack::Rocm, &ROCM_VARIABLES[..]),
        other => {
            return Err(GpuError::UnknownStack {
                stack: other.to_owned(),
            });
        }
    };
    let (granted, evidence) = match flags {
        Some(granted) if granted.stack != stack => {
            return Err(GpuError::OtherStack {
                wanted: stack_name(stack),
                granted: stack_name(granted.stack),
            });
        }
        Some(granted) => (
            parse_ids(&granted.ids.join(",")).unwrap_or_default(),
            "--gpu-ids".to_owned(),
        ),
        None => ids_in(names, &env).unwrap_or_else(|| {
            (
                Vec::new(),
                format!("neither --gpu-ids nor {} is set", names.join(" nor ")),
            )
        }),
    };
    if granted.len() < request.device_count as usize {
        return Err(GpuError::TooFew {
            wanted: request.device_count,
            granted: granted.len(),
            evidence,
        });
    }
    Ok(Some(GpuGrant {
        stack,
        ids: granted,
    }))
}

/// Ids of the GPUs of any kind that the scheduler granted to this job, for `crunch-run check`.
pub fn granted_ids(env: impl Fn(&str) -> Option<String>) -> Vec<String> {
    [&CUDA_VARIABLES[..], &ROCM_VARIABLES]
        .iter()
        .find_map(|names| ids_in(names, &env))
        .map(|(ids, _)| ids)
        .unwrap_or_default()
}

/// The ids in the first of these variables that is set, and the variable.
fn ids_in(names: &[&str], env: &impl Fn(&str) -> Option<String>) -> Option<(Vec<String>, String)> {
    names
        .iter()
        .find_map(|name| Some((parse_ids(&env(name)?)?, *name)))
        .map(|granted| to_node_indices(granted, env))
}

fn stack_name(stack: GpuStack) -> &'static str {
    match stack {
        GpuStack::Cuda => "cuda",
        GpuStack::Rocm => "rocm",
    }
}

/// Converts to the node's own indices, where Slurm provides both.
fn to_node_indices(
    (granted, source): (Vec<String>, &str),
    env: &impl Fn(&str) -> Option<String>,
) -> (Vec<String>, String) {
    let are_numbers = |ids: &[String]| ids.iter().all(|id| id.parse::<u32>().is_ok());
    if source.starts_with("_CONDOR") || !are_numbers(&granted) {
        return (granted, source.to_owned());
    }
    SLURM_NODE_VARIABLES
        .iter()
        .find_map(|name| Some((parse_ids(&env(name)?)?, (*name).to_owned())))
        .filter(|(ids, _)| ids.len() == granted.len() && are_numbers(ids))
        .unwrap_or((granted, source.to_owned()))
}

/// Parses a list like `0,1`, `GPU-uuid` or HTCondor's `CUDA0,CUDA1`. `None` if the list is empty. A
/// word for "none" ends the list, as in the driver.
fn parse_ids(list: &str) -> Option<Vec<String>> {
    let words = list.split(',').map(str::trim).filter(|id| !id.is_empty());
    let words: Vec<&str> = words.collect();
    let is_none = |id: &str| {
        // HTCondor's number for "no GPU".
        matches!(id, "-1" | "10000")
            || ["none", "nodevfiles", "void"].contains(&id.to_lowercase().as_str())
    };
    let ids = words.iter().take_while(|id| !is_none(id)).map(|id| {
        let number = ["CUDA", "OCL"]
            .iter()
            .find_map(|kind| id.strip_prefix(kind));
        number.unwrap_or(id).to_string()
    });
    (!words.is_empty()).then(|| ids.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(stack: &str, device_count: u32) -> Gpu {
        Gpu {
            stack: stack.into(),
            device_count,
            ..Gpu::default()
        }
    }

    fn granted(
        request: &Gpu,
        flags: Option<(GpuStack, &[&str])>,
        env: &[(&str, &str)],
    ) -> Result<Vec<String>, GpuError> {
        let flags = flags.map(|(stack, ids)| GpuGrant {
            stack,
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        });
        let env_var = |name: &str| {
            env.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        };
        grant(request, flags, env_var).map(|g| g.map(|g| g.ids).unwrap_or_default())
    }

    #[test]
    fn flags_go_before_the_environment_and_nobody_gets_what_he_did_not_ask_for() {
        let env = [
            ("CUDA_VISIBLE_DEVICES", "3,4"),
            ("ROCR_VISIBLE_DEVICES", "5"),
        ];
        let flags = Some((GpuStack::Cuda, &["0", "1"][..]));
        let none: [&str; 0] = [];
        assert_eq!(granted(&request("", 0), flags, &env).unwrap(), none);
        assert_eq!(
            granted(&request("cuda", 2), flags, &env).unwrap(),
            ["0", "1"]
        );
        assert_eq!(
            granted(&request("cuda", 2), None, &env).unwrap(),
            ["3", "4"]
        );
        assert_eq!(granted(&request("rocm", 1), None, &env).unwrap(), ["5"]);
        let condor = [
            ("CUDA_VISIBLE_DEVICES", ""),
            ("_CONDOR_AssignedGPUs", "CUDA0, GPU-8f2"),
        ];
        assert_eq!(
            granted(&request("cuda", 2), None, &condor).unwrap(),
            ["0", "GPU-8f2"]
        );
    }

    #[test]
    fn every_way_in_which_schedulers_say_it() {
        for (list, expected) in [
            ("", None),
            (" , ", None),
            ("0", Some(&["0"][..])),
            ("0,1", Some(&["0", "1"])),
            (" 2 , 3 ", Some(&["2", "3"])),
            ("GPU-8f2c,GPU-11", Some(&["GPU-8f2c", "GPU-11"])),
            ("MIG-GPU-8f2c/1/0", Some(&["MIG-GPU-8f2c/1/0"])),
            ("CUDA0,OCL1", Some(&["0", "1"])),
            ("nvidia.com/gpu=0", Some(&["nvidia.com/gpu=0"])),
            ("NoDevFiles", Some(&[])),
            ("10000", Some(&[])),
            ("-1", Some(&[])),
            ("none", Some(&[])),
            ("void", Some(&[])),
            // The driver ignores everything after the first invalid id.
            ("0,-1,1", Some(&["0"])),
        ] {
            let expected = expected.map(|ids| ids.iter().map(|s| (*s).to_owned()).collect());
            assert_eq!(parse_ids(list), expected, "{list:?}");
        }
    }

    #[test]
    fn slurm_s_own_numbers_are_the_node_s() {
        for (env, expected) in [
            (
                &[("CUDA_VISIBLE_DEVICES", "0"), ("SLURM_JOB_GPUS", "3")][..],
                &["3"][..],
            ),
            (
                &[
                    ("CUDA_VISIBLE_DEVICES", "0"),
                    ("SLURM_JOB_GPUS", "2,3"),
                    ("SLURM_STEP_GPUS", "3"),
                ],
                &["3"],
            ),
            // The job's owner has chosen some of them, or named them by what they are everywhere.
            (
                &[("CUDA_VISIBLE_DEVICES", "1"), ("SLURM_JOB_GPUS", "2,3")],
                &["1"],
            ),
            (
                &[("CUDA_VISIBLE_DEVICES", "GPU-aa"), ("SLURM_JOB_GPUS", "3")],
                &["GPU-aa"],
            ),
            (&[("SLURM_JOB_GPUS", "3")], &["3"]),
            (
                &[("_CONDOR_AssignedGPUs", "CUDA1"), ("SLURM_JOB_GPUS", "3")],
                &["1"],
            ),
        ] {
            assert_eq!(
                granted(&request("cuda", 1), None, env).unwrap(),
                expected,
                "{env:?}"
            );
        }
    }

    #[test]
    fn too_little_is_said() {
        let message = |request: &Gpu, flags, env: &[(&str, &str)]| {
            granted(request, flags, env).unwrap_err().to_string()
        };
        assert_eq!(
            message(&request("cuda", 2), None, &[("CUDA_VISIBLE_DEVICES", "0")]),
            "the container asks for 2 GPUs, and the scheduler granted this job 1 (CUDA_VISIBLE_DEVICES)"
        );
        // A scheduler's "none" ends the search.
        for none in ["NoDevFiles", "10000"] {
            let env = [
                ("CUDA_VISIBLE_DEVICES", none),
                ("_CONDOR_AssignedGPUs", "CUDA0"),
            ];
            assert!(
                message(&request("cuda", 1), None, &env)
                    .ends_with("this job 0 (CUDA_VISIBLE_DEVICES)")
            );
        }
        let words = message(
            &request("cuda", 1),
            Some((GpuStack::Cuda, &["NoDevFiles"][..])),
            &[],
        );
        assert!(words.ends_with("this job 0 (--gpu-ids)"), "{words}");
        assert!(message(&request("cuda", 1), None, &[]).contains("neither --gpu-ids nor"));
        assert!(message(&request("tpu", 1), None, &[]).contains("\"tpu\""));
        let rocm: Option<(GpuStack, &[&str])> = Some((GpuStack::Rocm, &["0"][..]));
        assert!(message(&request("cuda", 1), rocm, &[]).contains("rocm ones"));
    }
}

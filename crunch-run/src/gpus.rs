//! Which GPUs this job was granted: by the flags, or by what the scheduler put into the environment; and whether they
//! are what the container asks for.

mod facts;
mod needs;

pub use self::facts::{Facts, of_node};
pub use self::needs::{check, facts_of};

use arvados_client::resources::Gpu;

use crate::engine::{GpuGrant, GpuStack};

/// Where schedulers say it, most specific first.
const CUDA: [&str; 3] = [
    "CUDA_VISIBLE_DEVICES",
    "_CONDOR_AssignedGPUs",
    "SLURM_JOB_GPUS",
];
/// Where Slurm shuts a job off from other devices it numbers those in `CUDA_VISIBLE_DEVICES` anew, from 0. These have
/// the node's own numbers, by which its device nodes are named.
const SLURM: [&str; 2] = ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];
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
    #[error("GPU {id} is not what the container asks for: {wanted}, but {there}")]
    Unfit {
        id: String,
        wanted: String,
        there: String,
    },
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
        Some(granted) => (
            ids(&granted.ids.join(",")).unwrap_or_default(),
            "--gpu-ids".to_owned(),
        ),
        None => names
            .iter()
            .find_map(|name| Some((ids(&env(name)?)?, *name)))
            .map(|granted| by_the_node_s_numbers(granted, &env))
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

/// The same devices by the numbers they have on the node, where Slurm tells both.
fn by_the_node_s_numbers(
    (granted, source): (Vec<String>, &str),
    env: &impl Fn(&str) -> Option<String>,
) -> (Vec<String>, String) {
    let are_numbers = |ids: &[String]| ids.iter().all(|id| id.parse::<u32>().is_ok());
    if source.starts_with("_CONDOR") || !are_numbers(&granted) {
        return (granted, source.to_owned());
    }
    SLURM
        .iter()
        .find_map(|name| Some((ids(&env(name)?)?, (*name).to_owned())))
        .filter(|(ids, _)| ids.len() == granted.len() && are_numbers(ids))
        .unwrap_or((granted, source.to_owned()))
}

/// A list like `0,1`, `GPU-uuid`, or HTCondor's `CUDA0,CUDA1`. `None` if it says nothing; a word for "none" says that
/// there are no more, as the driver takes it.
fn ids(list: &str) -> Option<Vec<String>> {
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
            // The driver sees nothing beyond the first that it cannot take.
            ("0,-1,1", Some(&["0"])),
        ] {
            let expected = expected.map(|ids| ids.iter().map(|s| (*s).to_owned()).collect());
            assert_eq!(ids(list), expected, "{list:?}");
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
                granted(&wish("cuda", 1), None, env).unwrap(),
                expected,
                "{env:?}"
            );
        }
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
        // It is not looked for elsewhere where a scheduler says "none".
        for none in ["NoDevFiles", "10000"] {
            let env = [
                ("CUDA_VISIBLE_DEVICES", none),
                ("_CONDOR_AssignedGPUs", "CUDA0"),
            ];
            assert!(
                message(&wish("cuda", 1), None, &env)
                    .ends_with("this job 0 (CUDA_VISIBLE_DEVICES)")
            );
        }
        let words = message(
            &wish("cuda", 1),
            Some((GpuStack::Cuda, &["NoDevFiles"][..])),
            &[],
        );
        assert!(words.ends_with("this job 0 (--gpu-ids)"), "{words}");
        assert!(message(&wish("cuda", 1), None, &[]).contains("neither --gpu-ids nor"));
        assert!(message(&wish("tpu", 1), None, &[]).contains("\"tpu\""));
        let rocm: Option<(GpuStack, &[&str])> = Some((GpuStack::Rocm, &["0"][..]));
        assert!(message(&wish("cuda", 1), rocm, &[]).contains("rocm ones"));
    }
}

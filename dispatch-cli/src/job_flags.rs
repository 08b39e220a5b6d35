//! Flags of a job, for `dispatch submit` and `dispatch run`, each checked by itself.

use std::time::Duration;

use clap::Args;
use units::format_size;

use crate::completion;
use crate::gpu_request::Gpus;

/// Priority of a job for which none is given.
pub const DEFAULT_PRIORITY: u32 = 500;

/// Minimum memory of a job: no engine starts a container with less.
const MIN_MEMORY: u64 = 6 << 20;

/// Flags of a job.
#[derive(Debug, Args)]
pub struct JobFlags {
    /// Image of the container: NAME[:TAG] as in 'dispatch image list', or the uuid or portable data
    /// hash of its collection
    #[arg(long, value_name = "IMAGE", add = completion::image_names())]
    pub image: String,
    /// Number of CPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = cpus)]
    pub cpus: u32,
    /// Maximum memory; a job that uses more is killed
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = memory)]
    pub memory: u64,
    /// Number of GPUs, or STACK:N with cuda or rocm as the stack
    #[arg(long, value_name = "[STACK:]N", value_parser = Gpus::parse)]
    pub gpus: Option<Gpus>,
    /// Kind of GPU that the job can use: a compute capability of CUDA like 8.0, or a target of ROCm
    /// like gfx90a; may be given several times [default: any]
    #[arg(long, value_name = "TARGET", requires = "gpus")]
    pub gpu_target: Vec<String>,
    /// Scratch space: disk space for the output
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = units::parse_positive_size)]
    pub scratch: u64,
    /// Maximum run time; the job is stopped after it, and its output is not saved [default: no
    /// limit]
    #[arg(long, value_name = "TIME", value_parser = units::parse_whole_seconds)]
    pub time: Option<Duration>,
    /// Priority from 1 to 1000; a larger one starts sooner. 0 puts the job on hold
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PRIORITY, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub priority: u32,
    /// Partition of the scheduler where the job may run; may be given several times
    #[arg(long, value_name = "NAME")]
    pub partition: Vec<String>,
    /// Run the job where other jobs may take its node away, if the site has such nodes
    #[arg(long)]
    pub preemptible: bool,
    /// How often the job is tried again if neither the job itself nor the site is at fault
    /// [default: 0 with a 'dispatch up' of this machine, else as the server decides]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..1000))]
    pub retries: Option<u32>,
    /// Name of the job [default: the name of the command]
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Environment variable of the job; may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Input at /input/NAME, or at NAME if that begins with /: the output of a job (its number), a
    /// collection (uuid or portable data hash), both with :PATH for a part of it, or a file or
    /// directory of this machine; may be given several times
    #[arg(long, value_name = "NAME=WHAT")]
    pub input: Vec<String>,
    /// Standard input: JOB:PATH, COLLECTION:PATH, a file, or - for that of this command
    #[arg(long, value_name = "WHAT")]
    pub stdin: Option<String>,
    /// Directory in the container that becomes the output
    #[arg(long, value_name = "PATH", default_value = "/out")]
    pub output_path: String,
    /// Directory in which the command starts; . is that of the image [default: the output path]
    #[arg(long, value_name = "PATH", value_parser = workdir)]
    pub workdir: Option<String>,
    /// Give the job network access, and with it a token for the API
    #[arg(long)]
    pub network: bool,
    /// Use the result of an equal job that is running or succeeded, instead of running again
    #[arg(long)]
    pub reuse: bool,
    /// Command of the job, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

fn cpus(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "jobs get whole CPUs, at least 1".to_owned())
}

/// A size that a container can start in.
fn memory(text: &str) -> Result<u64, String> {
    let size = units::parse_positive_size(text).map_err(|error| error.to_string())?;
    match size >= MIN_MEMORY {
        true => Ok(size),
        false => Err(format!(
            "{text} is too little for a container to start in: write at least {}",
            format_size(MIN_MEMORY)
        )),
    }
}

fn workdir(text: &str) -> Result<String, String> {
    match text == "." || text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is not an absolute path in the container: write /data, or . for the directory of the image"
        )),
    }
}

//! Submission of containers with `sbatch`: arguments, job arrays, and how rejections are handled.

pub mod job_array;
pub mod rejection_backoff;
pub mod rejections;
pub mod sbatch;
pub mod submit_array;
pub mod submit_job;

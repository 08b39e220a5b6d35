//! Submission of containers with `sbatch`: arguments, job arrays, and how rejections are handled.

pub mod job_array;
pub mod reserved_options;
pub mod sbatch;
pub mod submit_array;
pub mod submit_job;
pub mod test_only;

//! Control of jobs in the queue: cancelling by condor_rm, order by condor_prio.

pub mod cancel;
pub mod job_prio;
pub mod reorder;

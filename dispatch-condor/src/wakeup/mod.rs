//! Wake-up of the controller as soon as a job ends.

pub mod job_event_log;

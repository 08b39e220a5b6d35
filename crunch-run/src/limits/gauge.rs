//! One limit: warned of at nine tenths, and over when more than all of it is used. Pure.

use std::fmt;

use bytesize::ByteSize;

/// What is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// In milliseconds.
    CpuTime,
    /// Of the whole attempt, in bytes.
    ScratchBytes,
    /// Of the whole attempt: files, links and directories.
    ScratchFiles,
    /// Of one `tmp` mount, named by its target, in bytes.
    MountBytes(String),
    /// Bytes in the output directory.
    OutputBytes,
    /// Bytes that cannot be given back. The kernel keeps this limit; we only warn.
    Memory,
}

/// A limit that was passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overrun {
    pub resource: Resource,
    pub used: u64,
    pub allowed: u64,
}

/// What a look at a gauge may be worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    Warn(String),
    Over(Overrun),
}

#[derive(Debug, Clone)]
pub struct Gauge {
    resource: Resource,
    allowed: u64,
    warned: bool,
}

impl Gauge {
    pub fn new(resource: Resource, allowed: u64) -> Self {
        Self {
            resource,
            allowed,
            warned: false,
        }
    }

    /// The warning comes once.
    pub fn see(&mut self, used: u64) -> Option<Seen> {
        let overrun = Overrun {
            resource: self.resource.clone(),
            used,
            allowed: self.allowed,
        };
        if used > self.allowed && self.resource != Resource::Memory {
            return Some(Seen::Over(overrun));
        }
        let is_near = u128::from(used) * 10 >= u128::from(self.allowed) * 9;
        if !is_near || std::mem::replace(&mut self.warned, true) {
            return None;
        }
        Some(Seen::Warn(format!("it is near its limit: {overrun}")))
    }
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |n: u64| ByteSize::b(n).display().iec();
        let (used, allowed) = (self.used, self.allowed);
        match &self.resource {
            Resource::CpuTime => {
                let seconds = |ms: u64| ms as f64 / 1e3;
                write!(
                    f,
                    "{:.1} s of {} s of CPU time",
                    seconds(used),
                    seconds(allowed)
                )
            }
            Resource::ScratchBytes => {
                write!(f, "{} of {} of scratch space", bytes(used), bytes(allowed))
            }
            Resource::ScratchFiles => write!(f, "{used} of {allowed} files in its scratch space"),
            Resource::MountBytes(target) => {
                write!(f, "{} of {} at {target}", bytes(used), bytes(allowed))
            }
            Resource::OutputBytes => write!(f, "{} of {} of output", bytes(used), bytes(allowed)),
            Resource::Memory => write!(f, "{} of {} of memory", bytes(used), bytes(allowed)),
        }
    }
}

impl Overrun {
    /// What whoever asked for the container can do.
    pub fn advice(&self) -> &'static str {
        match self.resource {
            Resource::CpuTime => "this site limits CPU time",
            Resource::ScratchBytes | Resource::ScratchFiles => "this site limits scratch space",
            Resource::MountBytes(_) => "ask for more capacity of that mount",
            Resource::OutputBytes => "this site limits the size of outputs",
            Resource::Memory => "ask for more with --mem",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_warns_once_and_then_says_that_it_is_over() {
        let mut gauge = Gauge::new(Resource::ScratchFiles, 100);
        for (used, expected) in [
            (0, ""),
            (89, ""),
            (90, "warn"),
            (95, ""),
            (10, ""),
            (100, ""),
            (101, "over"),
            (101, "over"),
        ] {
            let said = match gauge.see(used) {
                None => "",
                Some(Seen::Warn(_)) => "warn",
                Some(Seen::Over(over)) => {
                    assert_eq!((over.used, over.allowed), (used, 100));
                    "over"
                }
            };
            assert_eq!(said, expected, "{used}");
        }
        // A jump past everything is not announced first.
        let mut gauge = Gauge::new(Resource::CpuTime, 1000);
        assert!(matches!(gauge.see(5000), Some(Seen::Over(_))));
    }

    #[test]
    fn memory_is_the_kernel_s_to_limit() {
        let mut gauge = Gauge::new(Resource::Memory, 1 << 20);
        assert!(matches!(gauge.see(2 << 20), Some(Seen::Warn(_))));
        assert_eq!(gauge.see(2 << 20), None);
    }

    #[test]
    fn every_resource_is_told_in_its_unit() {
        let (used, allowed) = (3 << 20, 2 << 20);
        for (resource, expected) in [
            (Resource::CpuTime, "3145.7 s of 2097.152 s of CPU time"),
            (
                Resource::ScratchBytes,
                "3.0 MiB of 2.0 MiB of scratch space",
            ),
            (
                Resource::ScratchFiles,
                "3145728 of 2097152 files in its scratch space",
            ),
            (
                Resource::MountBytes("/out".into()),
                "3.0 MiB of 2.0 MiB at /out",
            ),
            (Resource::OutputBytes, "3.0 MiB of 2.0 MiB of output"),
            (Resource::Memory, "3.0 MiB of 2.0 MiB of memory"),
        ] {
            let overrun = Overrun {
                resource,
                used,
                allowed,
            };
            assert_eq!(overrun.to_string(), expected);
        }
    }
}

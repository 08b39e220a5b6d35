//! One limit: warns at 90 % and reports when usage exceeds 100 %. Pure.

use std::fmt;

use bytesize::ByteSize;

/// The limited resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// CPU time in milliseconds.
    CpuTime,
    /// Disk space of the whole attempt, in bytes.
    ScratchBytes,
    /// Disk space that the container took since it began, in bytes: its `tmp` mounts and its own
    /// root.
    RequestedScratch,
    /// Number of files, links and directories of the whole attempt.
    ScratchFiles,
    /// Disk space of one `tmp` mount, named by its target, in bytes.
    MountBytes(String),
    /// Bytes in the output directory.
    OutputBytes,
    /// Memory in bytes that cannot be reclaimed. The kernel enforces this limit; crunch-run only
    /// warns.
    Memory,
    /// Memory in bytes where nothing but crunch-run limits it.
    WatchedMemory,
}

impl Resource {
    /// Whether a container that uses too much of it is killed at once: with time to end, it could
    /// take the rest of it from others.
    pub fn kills_at_once(&self) -> bool {
        *self != Self::CpuTime
    }
}

/// A limit that was exceeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitExceeded {
    pub resource: Resource,
    pub used: u64,
    pub allowed: u64,
}

#[derive(Debug, Clone)]
pub struct UsageLimit {
    resource: Resource,
    allowed: u64,
    warned: bool,
}

impl UsageLimit {
    pub fn new(resource: Resource, allowed: u64) -> Self {
        Self {
            resource,
            allowed,
            warned: false,
        }
    }

    /// Whether at least half of the limit is used.
    pub fn is_half_used(&self, used: u64) -> bool {
        used >= self.allowed / 2
    }

    /// Whether at least 90 % of the limit is used.
    pub fn is_near(&self, used: u64) -> bool {
        u128::from(used) * 10 >= u128::from(self.allowed) * 9
    }

    /// What may be used beside `used`.
    pub fn left(&self, used: u64) -> u64 {
        self.allowed.saturating_sub(used)
    }

    /// The error if `used` exceeds the limit.
    pub fn exceeded(&self, used: u64) -> Option<LimitExceeded> {
        let is_exceeded = used > self.allowed && self.resource != Resource::Memory;
        is_exceeded.then(|| self.measured(used))
    }

    fn measured(&self, used: u64) -> LimitExceeded {
        LimitExceeded {
            resource: self.resource.clone(),
            used,
            allowed: self.allowed,
        }
    }

    /// Compares `used` with the limit, and warns once if it is near.
    pub fn update(&mut self, used: u64, warn: impl FnOnce(String)) -> Option<LimitExceeded> {
        let exceeded = self.exceeded(used);
        let is_near = exceeded.is_none() && self.is_near(used);
        if is_near && !std::mem::replace(&mut self.warned, true) {
            warn(format!("it is near its limit: {}", self.measured(used)));
        }
        exceeded
    }
}

impl fmt::Display for LimitExceeded {
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
            Resource::RequestedScratch => write!(
                f,
                "{} of {} for all that it writes, its own root included",
                bytes(used),
                bytes(allowed)
            ),
            Resource::ScratchFiles => write!(f, "{used} of {allowed} files in its scratch space"),
            Resource::MountBytes(target) => {
                write!(f, "{} of {} at {target}", bytes(used), bytes(allowed))
            }
            Resource::OutputBytes => write!(f, "{} of {} of output", bytes(used), bytes(allowed)),
            Resource::Memory | Resource::WatchedMemory => {
                write!(f, "{} of {} of memory", bytes(used), bytes(allowed))
            }
        }
    }
}

impl LimitExceeded {
    /// What the user can do.
    pub fn advice(&self) -> &'static str {
        match self.resource {
            Resource::CpuTime => "this site limits CPU time",
            Resource::ScratchBytes => "this site limits scratch space",
            Resource::ScratchFiles => {
                "make fewer files, or ask for more capacity of a tmp mount (--scratch of dispatch)"
            }
            Resource::RequestedScratch => {
                "ask for more capacity of a tmp mount (--scratch of dispatch)"
            }
            Resource::MountBytes(_) => {
                "ask for more capacity of that mount (--scratch of dispatch)"
            }
            Resource::OutputBytes => "this site limits the size of outputs",
            Resource::Memory | Resource::WatchedMemory => {
                "ask for more (--memory of dispatch, ram of the API)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(limit: &mut UsageLimit, used: u64) -> &'static str {
        let mut has_warned = false;
        match limit.update(used, |_| has_warned = true) {
            Some(over) => {
                assert_eq!((over.used, over.allowed), (used, limit.allowed));
                assert!(!has_warned);
                "over"
            }
            None if has_warned => "warn",
            None => "",
        }
    }

    #[test]
    fn a_gauge_warns_once_and_then_says_that_it_is_over() {
        let mut limit = UsageLimit::new(Resource::ScratchFiles, 100);
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
            let found = update(&mut limit, used);
            assert_eq!(found, expected, "{used}");
        }
        // A jump above the limit gives no warning first.
        let mut limit = UsageLimit::new(Resource::CpuTime, 1000);
        assert_eq!(update(&mut limit, 5000), "over");
    }

    #[test]
    fn memory_is_the_kernel_s_to_limit() {
        let mut limit = UsageLimit::new(Resource::Memory, 1 << 20);
        assert_eq!(update(&mut limit, 2 << 20), "warn");
        assert_eq!(update(&mut limit, 2 << 20), "");
        let mut watched = UsageLimit::new(Resource::WatchedMemory, 1 << 20);
        assert_eq!(update(&mut watched, 2 << 20), "over");
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
                Resource::RequestedScratch,
                "3.0 MiB of 2.0 MiB for all that it writes, its own root included",
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
            let exceeded = LimitExceeded {
                resource,
                used,
                allowed,
            };
            assert_eq!(exceeded.to_string(), expected);
        }
    }
}

//! Checks requested limits, and lists those that this node does not enforce.

use crate::gpu::GpuAccess;
use crate::kernel::default_pids;
use crate::{LimitCover, LimitKind, Limits, StartError, Unenforced};
use cgroup::limit_support::{LimitSupport, parse_cpus, swap_is_used};
use cgroup::{Cgroup, Layout, Mode, Scope};

/// Minimum memory limit: with less, the container's first process cannot be created.
const MIN_MEMORY: u64 = 6 << 20;

pub fn check(limits: &Limits) -> Result<(), StartError> {
    if let Some(limit) = limits.memory_bytes.filter(|bytes| *bytes < MIN_MEMORY) {
        return Err(StartError::MemoryTooSmall {
            limit,
            least: MIN_MEMORY,
        });
    }
    if let Some(asked) = &limits.cpuset {
        let allowed = allowed_cpus();
        let wanted = parse_cpus(asked).filter(|cpus| !cpus.is_empty());
        let fits = match (&wanted, allowed.as_deref().and_then(parse_cpus)) {
            (Some(wanted), Some(allowed)) => wanted.is_subset(&allowed),
            (Some(_), None) => true,
            (None, _) => false,
        };
        if !fits {
            return Err(StartError::CpusetNotAllowed {
                asked: asked.clone(),
                allowed: allowed.unwrap_or_default(),
            });
        }
    }
    Ok(())
}

/// The CPUs of this process's own group.
fn allowed_cpus() -> Option<String> {
    let own = Cgroup::of_process(std::process::id()).ok()?;
    own.dir("cpuset")?;
    // The root group of v2 shows none.
    let allowed = own.cpuset(Scope::Own).filter(|list| !list.is_empty());
    allowed.or_else(online_cpus)
}

fn online_cpus() -> Option<String> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    Some(online.trim().to_owned())
}

/// Unenforced limits of containers with control groups of their own.
pub fn unenforced_here(limits: &Limits, gpus: Option<&GpuAccess>) -> Vec<Unenforced> {
    let Ok(layout) = Layout::of_this_process() else {
        let sentence =
            "no limit can be enforced: the control groups of this process cannot be read";
        return vec![sentence.to_owned().into()];
    };
    let can = LimitSupport::here(&layout);
    unenforceable(limits, has_gpus(gpus), can, layout.mode, swap_is_used())
}

/// Why an ordinary user's containers have no limits of their own.
const NO_GROUPS: &str = "an ordinary user can make no control group here";

/// The same for a runtime that sets limits where its containers have control groups of their own.
pub fn unenforced_by_group(
    limits: &Limits,
    gpus: Option<&GpuAccess>,
    has_group: bool,
) -> Vec<Unenforced> {
    if has_group {
        return unenforced_here(limits, gpus);
    }
    unenforced_without_cgroup(limits, gpus, NO_GROUPS)
}

/// Limits of the control group that a container without one of its own runs in.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct JobLimits {
    memory: Option<u64>,
    cpus: Option<f64>,
}

impl JobLimits {
    fn here() -> Self {
        let Ok(own) = Cgroup::of_process(std::process::id()) else {
            return Self::default();
        };
        let online = online_cpus().and_then(|list| parse_cpus(&list));
        let online = online.map_or(f64::INFINITY, |cpus| cpus.len() as f64);
        Self {
            memory: own.shared_memory().limit,
            cpus: own
                .cpu_quota()
                .or(own.cpuset_size())
                .filter(|cpus| *cpus < online),
        }
    }

    /// The limits in words, and how far they replace those of a container.
    fn description(self) -> (String, LimitCover) {
        let memory = self.memory.map(|bytes| format!("{bytes} bytes of memory"));
        let cpus = self.cpus.map(|cpus| format!("{cpus} CPUs"));
        match (memory, cpus) {
            (Some(memory), Some(cpus)) => (format!("allows {memory} and {cpus}"), LimitCover::Full),
            (Some(memory), None) => (
                format!("allows {memory}, and does not limit CPUs"),
                LimitCover::Partial,
            ),
            (None, Some(cpus)) => (
                format!("allows {cpus}, and does not limit memory"),
                LimitCover::Partial,
            ),
            (None, None) => (
                "limits neither memory nor CPUs".to_owned(),
                LimitCover::Nothing,
            ),
        }
    }
}

/// Unenforced limits of containers without control groups of their own.
pub fn unenforced_without_cgroup(
    limits: &Limits,
    gpus: Option<&GpuAccess>,
    why: &str,
) -> Vec<Unenforced> {
    left_to_the_scheduler(limits, gpus, why, JobLimits::here())
}

fn left_to_the_scheduler(
    limits: &Limits,
    gpus: Option<&GpuAccess>,
    why: &str,
    of_job: JobLimits,
) -> Vec<Unenforced> {
    let mut all = Vec::new();
    all.extend(limits.memory_bytes.map(|n| format!("memory ({n} bytes)")));
    all.extend(limits.vcpus.map(|n| format!("CPUs ({n})")));
    all.extend(limits.cpuset.as_ref().map(|c| format!("which CPUs ({c})")));
    let most = limits.pids.unwrap_or_else(default_pids);
    all.push(format!("processes ({most})"));
    let all = all.join(", ");
    let kinds = [
        (
            LimitKind::Memory,
            limits.memory_bytes.is_some() && of_job.memory.is_none(),
        ),
        (
            LimitKind::Cpus,
            limits.vcpus.is_some() && of_job.cpus.is_none(),
        ),
        (LimitKind::Processes, true),
    ];
    let kinds = kinds.into_iter().filter(|(_, is_missing)| *is_missing);
    let kinds = kinds.map(|(kind, _)| kind).collect();
    let (of_job, cover) = of_job.description();
    let mut missing = vec![Unenforced {
        sentence: format!(
            "the engine does not limit what the container takes: {all}; {why}; the control group of its job {of_job}"
        ),
        cover,
        missing: kinds,
    }];
    if has_gpus(gpus) {
        let sentence = "the choice of GPUs is not enforced by the kernel: the container sees only its own device nodes";
        missing.push(sentence.to_owned().into());
    }
    missing
}

fn has_gpus(gpus: Option<&GpuAccess>) -> bool {
    gpus.is_some_and(|gpus| !gpus.devices.is_empty())
}

/// The limits that `can` lacks. `sentence` is about a limit and its controller.
pub fn unsupported(
    limits: &Limits,
    can: LimitSupport,
    sentence: impl Fn(String, &str) -> String,
) -> Vec<Unenforced> {
    let most = limits.pids.unwrap_or_else(default_pids);
    let memory = limits
        .memory_bytes
        .map(|n| format!("the memory limit of {n} bytes"));
    let cpus = limits.vcpus.map(|n| format!("the limit of {n} CPUs"));
    let cpuset = limits
        .cpuset
        .as_ref()
        .map(|list| format!("the restriction to CPUs {list}"));
    let processes = Some(format!("the limit of {most} processes"));
    [
        (can.memory, memory, Some(LimitKind::Memory), "memory"),
        (can.cpu, cpus, Some(LimitKind::Cpus), "cpu"),
        (can.cpuset, cpuset, None, "cpuset"),
        (can.pids, processes, Some(LimitKind::Processes), "pids"),
    ]
    .into_iter()
    .filter(|(can, ..)| !can)
    .filter_map(|(_, what, kind, controller)| {
        Some(Unenforced {
            missing: Vec::from_iter(kind),
            ..Unenforced::from(sentence(what?, controller))
        })
    })
    .collect()
}

fn unenforceable(
    limits: &Limits,
    has_gpus: bool,
    can: LimitSupport,
    mode: Mode,
    swap_is_used: bool,
) -> Vec<Unenforced> {
    let mut all = unsupported(limits, can, |what, controller| {
        format!(
            "{what} cannot be enforced: this process can use no {controller} controller here ({mode})"
        )
    });
    if limits.memory_bytes.is_some() && can.memory && !can.swap && swap_is_used {
        let sentence = "the memory limit does not cover swap: this kernel does not account swap to control groups";
        all.push(sentence.to_owned().into());
    }
    if has_gpus && !can.devices {
        let sentence = format!(
            "the choice of GPUs is not enforced by the kernel ({mode}): the container sees only its own device nodes and cannot make others"
        );
        all.push(sentence.into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_that_does_not_hold_is_named() {
        let limits = Limits {
            vcpus: Some(2.0),
            memory_bytes: Some(1 << 30),
            pids: None,
            cpuset: Some("0-1".into()),
        };
        let all = unenforceable(&limits, true, LimitSupport::NOTHING, Mode::V2, true);
        for description in [
            "1073741824 bytes",
            "2 CPUs",
            "CPUs 0-1",
            "processes",
            "GPUs",
        ] {
            assert_eq!(
                all.iter()
                    .filter(|one| one.sentence.contains(description))
                    .count(),
                1,
                "{description}: {all:?}"
            );
        }
        let can = LimitSupport {
            memory: true,
            swap: false,
            cpu: true,
            cpuset: true,
            pids: true,
            devices: true,
        };
        let missing = all.iter().flat_map(|one| one.missing.clone());
        let kinds = [LimitKind::Memory, LimitKind::Cpus, LimitKind::Processes];
        assert_eq!(missing.collect::<Vec<_>>(), kinds);
        assert_eq!(unenforceable(&limits, true, can, Mode::V1, true).len(), 1);
        assert!(unenforceable(&limits, true, can, Mode::V1, false).is_empty());
    }

    #[test]
    fn an_ordinary_user_is_told_of_every_limit() {
        let limits = Limits {
            vcpus: Some(2.0),
            memory_bytes: Some(1 << 30),
            pids: Some(7),
            cpuset: Some("0-1".into()),
        };
        let expected = "the engine does not limit what the container takes: memory (1073741824 bytes), CPUs (2), \
            which CPUs (0-1), processes (7); an ordinary user can make no control group here";
        use LimitKind::{Cpus, Memory, Processes};
        #[rustfmt::skip]
        let rows = [
            (None, None, "limits neither memory nor CPUs", LimitCover::Nothing, &[Memory, Cpus, Processes][..]),
            (Some(512), None, "allows 512 bytes of memory, and does not limit CPUs", LimitCover::Partial, &[Cpus, Processes]),
            (None, Some(1.5), "allows 1.5 CPUs, and does not limit memory", LimitCover::Partial, &[Memory, Processes]),
            (Some(512), Some(2.0), "allows 512 bytes of memory and 2 CPUs", LimitCover::Full, &[Processes]),
        ];
        for (memory, cpus, of_job, cover, missing) in rows {
            let of_job_limits = JobLimits { memory, cpus };
            let found = left_to_the_scheduler(&limits, None, NO_GROUPS, of_job_limits);
            let sentence = format!("{expected}; the control group of its job {of_job}");
            let expected = Unenforced {
                sentence,
                cover,
                missing: missing.to_vec(),
            };
            assert_eq!(found, [expected]);
        }
        let least = unenforced_without_cgroup(&Limits::default(), None, NO_GROUPS);
        assert!(
            least[0].sentence.contains("takes: processes ("),
            "{least:?}"
        );
    }
}

//! Checks control groups: version, whether containers can have groups, and which limits are
//! enforceable. `engines` reports the limits of the job's own group where they cannot.

use rustix::fs::{Access, access};

use cgroup::limit_support::{LimitSupport, swap_is_used};
use cgroup::{Layout, Mode};
use preflight::{Finding, Subject};

const CGROUPS: Subject = Subject("cgroups");
const DELEGATE: &str = "have the scheduler or systemd delegate a group to the job (systemd: Delegate=yes; Slurm: \
    CgroupPlugin=cgroup/v2), or run crunch-run as root; else the scheduler must keep the limits (Slurm: \
    ConstrainRAMSpace=yes, ConstrainCores=yes; HTCondor: CGROUP_MEMORY_LIMIT_POLICY=hard)";

pub fn run() -> Vec<Finding> {
    match Layout::of_this_process() {
        Ok(layout) => {
            let mut parents = layout.accounting().map(|h| h.parent_of_containers());
            let can_make = parents.all(|dir| access(&dir, Access::WRITE_OK).is_ok());
            let own = layout
                .accounting()
                .next()
                .map_or_else(String::new, |h| format!(" at {}", h.own_dir().display()));
            let enforceable = LimitSupport::here(&layout);
            evaluate(layout.mode, &own, can_make, enforceable)
        }
        Err(error) => vec![CGROUPS.fail(format!("/proc cannot be read: {error}"), "mount /proc")],
    }
}

fn evaluate(mode: Mode, own: &str, can_make: bool, can: LimitSupport) -> Vec<Finding> {
    if mode == Mode::Absent {
        return vec![CGROUPS.warn("none at /sys/fs/cgroup, so that only apptainer and the services can run containers, without limits",
            "mount them: mount -t cgroup2 none /sys/fs/cgroup",
        )];
    }
    let layout = format!("{mode}{own}");
    if !can_make {
        return vec![CGROUPS.warn(format!(
                "{layout}; this user cannot create groups below it: containers have the limits of this group"
            ),
            DELEGATE,
        )];
    }
    let (enforced, lacking) = split_by_support(can);
    let mut findings = vec![CGROUPS.ok(format!(
        "{layout}; this user can create groups for containers"
    ))];
    let what = Subject("limits");
    if lacking.is_empty() {
        let enforced = enforced.join(", ");
        findings.push(what.ok(format!("the kernel can enforce {enforced}")));
    } else {
        let enforced = match enforced.is_empty() {
            true => "nothing".to_owned(),
            false => enforced.join(", "),
        };
        findings.push(what.warn(
            format!(
                "the kernel can enforce {enforced}, and not {}",
                lacking.join(", ")
            ),
            DELEGATE,
        ));
    }
    findings
}

/// Splits the limits into enforceable ones and others. Swap is ignored on nodes without swap.
fn split_by_support(can: LimitSupport) -> (Vec<&'static str>, Vec<&'static str>) {
    let all = [
        ("memory", can.memory),
        ("CPUs", can.cpu),
        ("sets of CPUs", can.cpuset),
        ("processes", can.pids),
        ("swap", can.swap),
    ];
    let swap_is_used = swap_is_used();
    let (enforced, lacking): (Vec<_>, Vec<_>) = all
        .into_iter()
        .filter(|(name, enforced)| *name != "swap" || *enforced || swap_is_used)
        .partition(|(_, enforced)| *enforced);
    let names = |list: Vec<(&'static str, bool)>| list.into_iter().map(|(name, _)| name).collect();
    (names(enforced), names(lacking))
}

#[cfg(test)]
mod tests {
    use super::*;
    use preflight::Level;

    #[test]
    fn each_way_a_node_can_have_them() {
        let all = LimitSupport::ALL_OF_V2;
        let no_memory = LimitSupport {
            memory: false,
            ..all
        };
        use Level::{Ok, Warn};
        for (mode, can_make, can, levels, words) in [
            (Mode::V2, true, all, &[Ok, Ok][..], "memory, CPUs"),
            (Mode::Hybrid, true, no_memory, &[Ok, Warn], "not memory"),
            (
                Mode::V2,
                true,
                LimitSupport::NOTHING,
                &[Ok, Warn],
                "nothing",
            ),
            (
                Mode::V2,
                false,
                all,
                &[Warn],
                "have the limits of this group",
            ),
            (Mode::Absent, true, all, &[Warn], "none at"),
        ] {
            let findings = evaluate(mode, "", can_make, can);
            let got: Vec<Level> = findings.iter().map(|f| f.level).collect();
            assert_eq!(got, levels, "{findings:?}");
            let last = &findings[findings.len() - 1].finding;
            assert!(last.contains(words), "{last}");
        }
    }
}

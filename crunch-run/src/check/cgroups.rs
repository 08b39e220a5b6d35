//! Control groups: which version, whether groups can be made for containers, and which limits these would keep.

use std::path::Path;

use rustix::fs::{Access, access};

use super::finding::Finding;
use crate::cgroup::enforce::Enforceable;
use crate::cgroup::{Layout, Mode};

const WHAT: &str = "cgroups";
const DELEGATE: &str = "have the scheduler or systemd delegate a group to the job (systemd: Delegate=yes; Slurm: \
    CgroupPlugin=cgroup/v2), or run crunch-run as root; else the scheduler must keep the limits (Slurm: \
    ConstrainRAMSpace=yes, ConstrainCores=yes; HTCondor: CGROUP_MEMORY_LIMIT_POLICY=hard)";

pub fn look() -> Vec<Finding> {
    match Layout::of_this_process() {
        Ok(layout) => {
            let mut parents = layout.accounting().map(|h| h.parent_of_containers());
            let can_make = parents.all(|dir| access(&dir, Access::WRITE_OK).is_ok());
            let own = layout
                .accounting()
                .next()
                .map_or_else(String::new, |h| format!(" at {}", h.own_dir().display()));
            let enforceable = Enforceable::here(&layout);
            judge(layout.mode, &own, can_make, enforceable)
        }
        Err(error) => vec![Finding::fail(
            WHAT,
            format!("/proc cannot be read: {error}"),
            "mount /proc",
        )],
    }
}

fn judge(mode: Mode, own: &str, can_make: bool, can: Enforceable) -> Vec<Finding> {
    if mode == Mode::Absent {
        return vec![Finding::warn(
            WHAT,
            "none at /sys/fs/cgroup, so that only apptainer and the services can run containers, without limits",
            "mount them: mount -t cgroup2 none /sys/fs/cgroup",
        )];
    }
    let place = format!("{mode}{own}");
    if !can_make {
        return vec![Finding::warn(
            WHAT,
            format!(
                "{place}; this user can make no groups below it, so that limits are the scheduler's"
            ),
            DELEGATE,
        )];
    }
    let (kept, lacking) = sorted(can);
    let mut findings = vec![Finding::ok(
        WHAT,
        format!("{place}; groups can be made for containers"),
    )];
    let what = "limits";
    if lacking.is_empty() {
        let kept = kept.join(", ");
        findings.push(Finding::ok(what, format!("the kernel can keep {kept}")));
    } else {
        let kept = match kept.is_empty() {
            true => "nothing".to_owned(),
            false => kept.join(", "),
        };
        findings.push(Finding::warn(
            what,
            format!("the kernel can keep {kept}, and not {}", lacking.join(", ")),
            DELEGATE,
        ));
    }
    findings
}

/// What can be kept and what cannot. Swap is of no account where there is none.
fn sorted(can: Enforceable) -> (Vec<&'static str>, Vec<&'static str>) {
    let all = [
        ("memory", can.memory),
        ("CPUs", can.cpu),
        ("sets of CPUs", can.cpuset),
        ("processes", can.pids),
        ("swap", can.swap),
    ];
    let swap_is_used =
        std::fs::read_to_string(Path::new("/proc/swaps")).is_ok_and(|t| t.lines().count() > 1);
    let (kept, lacking): (Vec<_>, Vec<_>) = all
        .into_iter()
        .filter(|(name, kept)| *name != "swap" || *kept || swap_is_used)
        .partition(|(_, kept)| *kept);
    let names = |list: Vec<(&'static str, bool)>| list.into_iter().map(|(name, _)| name).collect();
    (names(kept), names(lacking))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level;

    #[test]
    fn each_way_a_node_can_have_them() {
        let all = Enforceable {
            memory: true,
            swap: true,
            cpu: true,
            cpuset: true,
            pids: true,
            devices: false,
        };
        let no_memory = Enforceable {
            memory: false,
            ..all
        };
        use Level::{Ok, Warn};
        for (mode, can_make, can, levels, words) in [
            (Mode::V2, true, all, &[Ok, Ok][..], "memory, CPUs"),
            (Mode::Hybrid, true, no_memory, &[Ok, Warn], "not memory"),
            (Mode::V2, true, Enforceable::NOTHING, &[Ok, Warn], "nothing"),
            (Mode::V2, false, all, &[Warn], "the scheduler's"),
            (Mode::Absent, true, all, &[Warn], "none at"),
        ] {
            let findings = judge(mode, "", can_make, can);
            let got: Vec<Level> = findings.iter().map(|f| f.level).collect();
            assert_eq!(got, levels, "{findings:?}");
            let last = &findings[findings.len() - 1].finding;
            assert!(last.contains(words), "{last}");
        }
    }
}

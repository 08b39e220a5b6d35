//! Versions of the kernel, and how many processes it can have.

/// That of this node, if it can be read.
pub fn running_version() -> Option<(u32, u32)> {
    kernel_version(&rustix::system::uname().release().to_string_lossy())
}

/// Share of the kernel's processes that one container may have, in percent: as systemd gives a
/// service. The node keeps room, so that its administrator can log in and end a fork bomb.
const PIDS_PERCENT: u64 = 15;
/// Maximum of the default, enough for any program.
const MAX_PIDS: u64 = 32_768;
/// Where the kernel's limits cannot be read: 15 % of the smallest that it has by default.
const UNKNOWN_PIDS: u64 = 4_915;

/// Default limit on processes and threads of one container.
pub fn default_pids() -> u64 {
    let limit = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse().ok()
    };
    share_of_pids(limit("pid_max"), limit("threads-max"))
}

fn share_of_pids(pid_max: Option<u64>, threads_max: Option<u64>) -> u64 {
    let least = [pid_max, threads_max].into_iter().flatten().min();
    least.map_or(UNKNOWN_PIDS, |all| (all * PIDS_PERCENT / 100).min(MAX_PIDS))
}

/// Major and minor number.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions() {
        for (release, expected) in [
            ("6.18.44-fc-v769", Some((6, 18))),
            ("4.18.0-553.el8.x86_64", Some((4, 18))),
            ("odd", None),
        ] {
            assert_eq!(kernel_version(release), expected, "{release}");
        }
    }

    #[test]
    fn the_default_limit_of_processes_leaves_room() {
        for (pid_max, threads_max, expected) in [
            (Some(32_768), Some(192_729), 4_915),
            (Some(4_194_304), Some(192_729), 28_909),
            (Some(4_194_304), Some(4_126_000), 32_768),
            (None, None, 4_915),
        ] {
            assert_eq!(share_of_pids(pid_max, threads_max), expected);
        }
    }
}

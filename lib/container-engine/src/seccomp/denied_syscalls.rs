//! The system calls that a container may not use by default, with the reason for each group.
//!
//! The effect is that of Docker's default profile. Three differences: calls that place the
//! container's own memory on NUMA nodes are allowed, because scientific programs use them; sockets
//! of the families from `AF_ALG` on are refused, not only `AF_VSOCK`; and calls that are newer than
//! this table do not exist (ENOSYS), so that libraries fall back to older ones. The test that makes
//! the calls inside a container is `contract/escapes.c` in crunch-run's integration tests.

use oci_spec::runtime::LinuxSeccompOperator::{
    self, ScmpCmpEq, ScmpCmpGe, ScmpCmpLt, ScmpCmpMaskedEq,
};

/// The last system call that was reviewed for this table, `removexattrat` of Linux 6.13. Later ones
/// have higher numbers on every architecture.
pub const LAST_REVIEWED: i32 = 466;

/// Groups of system calls that fail with EPERM.
pub const DENIED: &[(&str, &[&str])] = &[
    (
        "they change what is mounted, which would uncover control groups and files of the node",
        &[
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "pivot_root",
            "umount",
            "umount2",
        ],
    ),
    (
        "a new namespace brings new privileges, and with them most of the kernel's code",
        &["setns", "unshare"],
    ),
    (
        "a file handle names files outside of the container's root",
        &["open_by_handle_at"],
    ),
    (
        "they load code into the kernel",
        &[
            "bpf",
            "create_module",
            "delete_module",
            "finit_module",
            "get_kernel_syms",
            "init_module",
            "kexec_file_load",
            "kexec_load",
            "query_module",
        ],
    ),
    (
        "they work around the checks of other system calls, with a history of holes",
        &[
            "io_uring_enter",
            "io_uring_register",
            "io_uring_setup",
            "userfaultfd",
        ],
    ),
    (
        "the kernel's key rings are not separate for each container",
        &["add_key", "keyctl", "request_key"],
    ),
    (
        "they show what other processes and the kernel do",
        &[
            "fanotify_init",
            "kcmp",
            "lookup_dcookie",
            "perf_event_open",
            "syslog",
        ],
    ),
    (
        "they reach into the memory or the open files of another process",
        &[
            "migrate_pages",
            "move_pages",
            "pidfd_getfd",
            "process_madvise",
        ],
    ),
    (
        "the clock, the name and the switches of the node are not the container's",
        &[
            "acct",
            "clock_settime",
            "quotactl",
            "quotactl_fd",
            "reboot",
            "setdomainname",
            "sethostname",
            "settimeofday",
            "swapoff",
            "swapon",
            "vhangup",
        ],
    ),
    (
        "they give direct access to the ports of devices",
        &["ioperm", "iopl"],
    ),
    (
        "nothing of today uses them",
        &["_sysctl", "nfsservctl", "sysfs", "uselib", "ustat"],
    ),
];

/// Denied calls that a program needs for making a container.
pub const NEEDED_FOR_CONTAINERS: [&str; 15] = [
    "clone",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pivot_root",
    "setns",
    "sethostname",
    "umount",
    "umount2",
    "unshare",
];

/// Does not exist: its flags are in memory, where no filter can read them. Libraries use `clone`.
pub const HIDDEN: &[&str] = &["clone3"];

/// A comparison of one argument: its index, the operator, and one or two values.
pub type Comparison = (usize, LinuxSeccompOperator, u64, Option<u64>);

/// A system call whose arguments decide.
pub struct Conditional {
    pub name: &'static str,
    /// Any of these allows it.
    pub allowed: &'static [Comparison],
    /// Any of these is EPERM. All that is in neither list is ENOSYS.
    pub denied: &'static [Comparison],
}

const PER_LINUX32: u64 = 8;

const NEW_NAMESPACES: [u64; 7] = [
    libc::CLONE_NEWNS as u64,
    libc::CLONE_NEWCGROUP as u64,
    libc::CLONE_NEWUTS as u64,
    libc::CLONE_NEWIPC as u64,
    libc::CLONE_NEWUSER as u64,
    libc::CLONE_NEWPID as u64,
    libc::CLONE_NEWNET as u64,
];

const ANY_NEW_NAMESPACE: u64 = {
    let [a, b, c, d, e, f, g] = NEW_NAMESPACES;
    a | b | c | d | e | f | g
};

const fn has_flag(flag: u64) -> Comparison {
    (0, ScmpCmpMaskedEq, flag, Some(flag))
}

const fn is(value: u64) -> Comparison {
    (0, ScmpCmpEq, value, None)
}

pub const CONDITIONAL: &[Conditional] = &[
    Conditional {
        name: "clone",
        // As for `unshare`.
        allowed: &[(0, ScmpCmpMaskedEq, ANY_NEW_NAMESPACE, Some(0))],
        denied: &{
            let [a, b, c, d, e, f, g] = NEW_NAMESPACES;
            [
                has_flag(a),
                has_flag(b),
                has_flag(c),
                has_flag(d),
                has_flag(e),
                has_flag(f),
                has_flag(g),
            ]
        },
    },
    Conditional {
        name: "socket",
        // The comparison is of 64 bits, of which the kernel takes 32. So nothing above is allowed.
        // AF_VSOCK reaches the hypervisor without a network. The families beside it are hardly
        // used, and had holes.
        allowed: &[(0, ScmpCmpLt, libc::AF_ALG as u64, None)],
        denied: &[(0, ScmpCmpGe, libc::AF_ALG as u64, None)],
    },
    Conditional {
        name: "personality",
        // Other values turn protections of memory off. These ask, or pretend an older machine.
        allowed: &[
            is(0),
            is(PER_LINUX32),
            is(libc::UNAME26 as u64),
            is(libc::UNAME26 as u64 | PER_LINUX32),
            is(0xffff_ffff),
        ],
        denied: &[],
    },
];

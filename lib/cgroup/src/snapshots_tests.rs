//! Control groups of the distributions that sites run; figures are found on each.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Cgroup, Layout, Scope};

/// Control groups of a process in a login session.
struct Snapshot {
    system: &'static str,
    /// Controllers with a hierarchy of their own; empty on a machine with the unified one only.
    v1: &'static [&'static str],
    /// `/proc/PID/cgroup`.
    cgroup: &'static str,
    /// Path of the block devices' accounting below the hierarchy's mount.
    block: &'static str,
    /// Files below the mount.
    files: &'static [(&'static str, &'static str)],
    cpus: f64,
}

const DEBIAN_V2: &str = "anon 9000000\nfile 12000000000\npgmajfault 40\n";
const CPU_V2: &str = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n";
const IO_V2: &str = "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n";
const MEMORY_V1: &str = "cache 1\nrss 2\ntotal_cache 73400320\ntotal_rss 9000000\ntotal_swap 320\ntotal_pgmajfault 40\n";
const IO_V1: &str = "254:0 Read 4096\n254:0 Write 8192\n254:0 Total 12288\nTotal 12288\n";
const HIERARCHIES: &[&str] = &["cpu,cpuacct", "memory", "blkio", "cpuset"];

const SNAPSHOTS: [Snapshot; 6] = [
    Snapshot {
        system: "debian10",
        v1: HIERARCHIES,
        cgroup: "4:memory:/user.slice/user-1000.slice/session-9.scope\n3:blkio:/user.slice\n\
                 2:cpu,cpuacct:/user.slice\n5:cpuset:/\n1:name=systemd:/user.slice\n0::/user.slice\n",
        block: "blkio/user.slice",
        files: &[
            (
                "memory/user.slice/user-1000.slice/session-9.scope/memory.stat",
                MEMORY_V1,
            ),
            ("blkio/user.slice/blkio.throttle.io_service_bytes", IO_V1),
            ("cpu,cpuacct/user.slice/cpuacct.usage_user", "2000000000\n"),
            ("cpu,cpuacct/user.slice/cpuacct.usage_sys", "500000000\n"),
            ("cpuset/cpuset.cpus", "0-1\n"),
        ],
        cpus: 2.0,
    },
    Snapshot {
        system: "debian11",
        v1: &[],
        cgroup: "0::/user.slice/user-1000.slice/session-5424.scope\n",
        block: "user.slice/user-1000.slice/session-5424.scope",
        files: &[
            (
                "user.slice/user-1000.slice/session-5424.scope/memory.stat",
                DEBIAN_V2,
            ),
            (
                "user.slice/user-1000.slice/session-5424.scope/cpu.stat",
                CPU_V2,
            ),
            ("io.stat", IO_V2),
            ("cpuset.cpus.effective", "0-3\n"),
        ],
        cpus: 4.0,
    },
    Snapshot {
        system: "debian12",
        v1: &[],
        cgroup: "0::/user.slice/user-1000.slice/session-4.scope\n",
        block: "user.slice/user-1000.slice/session-4.scope",
        files: &[
            ("user.slice/user-1000.slice/memory.stat", DEBIAN_V2),
            ("user.slice/user-1000.slice/memory.current", "12591513600\n"),
            (
                "user.slice/user-1000.slice/memory.swap.current",
                "3554775040\n",
            ),
            (
                "user.slice/user-1000.slice/session-4.scope/cpu.stat",
                CPU_V2,
            ),
            ("io.stat", IO_V2),
            ("cpuset.cpus.effective", "0-7\n"),
        ],
        cpus: 8.0,
    },
    Snapshot {
        system: "ubuntu1804",
        v1: HIERARCHIES,
        cgroup: "4:memory:/user.slice\n3:blkio:/user.slice\n2:cpu,cpuacct:/user.slice\n5:cpuset:/\n0::/a\n",
        block: "blkio/user.slice",
        files: &[
            ("memory/user.slice/memory.stat", MEMORY_V1),
            ("blkio/blkio.throttle.io_service_bytes", IO_V1),
            ("cpu,cpuacct/user.slice/cpuacct.usage_user", "2000000000\n"),
            ("cpu,cpuacct/user.slice/cpuacct.usage_sys", "500000000\n"),
            ("cpuset/cpuset.effective_cpus", "0,3\n"),
        ],
        cpus: 2.0,
    },
    Snapshot {
        system: "ubuntu2004",
        v1: HIERARCHIES,
        cgroup: "4:memory:/user.slice/user-1000.slice/session-1.scope\n3:blkio:/user.slice\n\
                 2:cpu,cpuacct:/user.slice\n5:cpuset:/\n0::/user.slice\n",
        block: "blkio/user.slice",
        files: &[
            ("memory/user.slice/user-1000.slice/memory.stat", MEMORY_V1),
            (
                "blkio/user.slice/blkio.throttle.io_service_bytes_recursive",
                IO_V1,
            ),
            ("cpu,cpuacct/user.slice/cpuacct.usage_user", "2000000000\n"),
            ("cpu,cpuacct/user.slice/cpuacct.usage_sys", "500000000\n"),
            ("cpuset/cpuset.cpus", "0-1\n"),
        ],
        cpus: 2.0,
    },
    Snapshot {
        system: "ubuntu2204",
        v1: &[],
        cgroup: "0::/user.slice/user-1000.slice/session-2.scope\n",
        block: "user.slice/user-1000.slice/session-2.scope",
        files: &[
            (
                "user.slice/user-1000.slice/session-2.scope/memory.stat",
                DEBIAN_V2,
            ),
            (
                "user.slice/user-1000.slice/session-2.scope/cpu.stat",
                CPU_V2,
            ),
            ("user.slice/io.stat", IO_V2),
            ("user.slice/cpuset.cpus.effective", "0-1\n"),
        ],
        cpus: 2.0,
    },
];

impl Snapshot {
    fn lay_out(&self, root: &Path) -> Cgroup {
        let mount = |at: &str, kind: &str, options: &str| {
            let at = root.join(at);
            format!(
                "1 2 0:1 / {} rw - {kind} {kind} rw,{options}\n",
                at.display()
            )
        };
        let mountinfo: String = match self.v1 {
            [] => mount("", "cgroup2", "nsdelegate"),
            v1 => v1.iter().map(|name| mount(name, "cgroup", name)).collect(),
        };
        let group = Cgroup::of_layout(&Layout::parse(
            &mountinfo.replace("/ rw", " rw"),
            self.cgroup,
        ));
        // Every group down to the process's own is one.
        for dir in group.dirs() {
            fs::create_dir_all(dir).unwrap();
            for group in dir
                .ancestors()
                .take_while(|dir| *dir != root.parent().unwrap())
            {
                fs::write(group.join("cgroup.procs"), "").unwrap();
            }
        }
        for (file, text) in self.files {
            fs::write(root.join(file), text).unwrap();
        }
        group
    }
}

#[test]
fn every_distribution_tells_memory_disk_traffic_and_cpus() {
    for snapshot in SNAPSHOTS {
        let system = snapshot.system;
        let root = tempfile::tempdir().unwrap();
        let root: PathBuf = root.path().canonicalize().unwrap();
        let group = snapshot.lay_out(&root);
        assert_eq!(
            group.dir("blkio"),
            Some(&*root.join(snapshot.block)),
            "{system}"
        );
        let memory = group.memory(Scope::Nearest).unwrap();
        assert_eq!(memory.rss, Some(9_000_000), "{system}");
        assert_eq!(memory.pgmajfault, Some(40), "{system}");
        let io = group.block_io(Scope::Nearest);
        assert_eq!((io[0].read, io[0].written), (4096, 8192), "{system}");
        let cpu = group.cpu(Scope::Nearest).unwrap();
        assert_eq!((cpu.user, cpu.system), (2.0, 0.5), "{system}");
        assert_eq!(group.cpus(), snapshot.cpus, "{system}");
    }
}

#[test]
fn the_figures_of_a_group_around_are_not_a_container_s() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let group = SNAPSHOTS[2].lay_out(&root);
    assert_eq!(group.memory(Scope::Own), None);
    assert!(group.block_io(Scope::Own).is_empty());
    // Page cache does not count for warnings.
    let memory = group.memory(Scope::Nearest).unwrap();
    assert_eq!(
        (memory.rss, memory.swap),
        (Some(9_000_000), Some(3_554_775_040))
    );
}

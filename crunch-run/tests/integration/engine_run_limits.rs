//! The built-in engine enforces limits, and reports what the kernel did. Needs root and
//! busybox-static.

use std::fs;

use crate::engine_lab::{Lab, Request, exec, shell};
use container_engine::{EngineError, ExitStatus, GpuGrant, GpuStack, Limits, StartError, gpu};

const MIB: u64 = 1 << 20;

fn limited(mut request: Request, limits: Limits) -> Request {
    request.limits = limits;
    request
}

fn memory(bytes: u64) -> Limits {
    Limits {
        memory_bytes: Some(bytes),
        ..Limits::default()
    }
}

/// Makes a shell use as much memory as it can get.
const USE_200_MB: &str = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}";

#[tokio::test]
async fn a_container_over_its_memory_limit_is_killed_and_the_kernel_s_word_is_the_reason() {
    let lab = Lab::new();
    let request = limited(
        shell(&format!("exec sh -c \"{USE_200_MB}\"").replace('$', "\\$")),
        memory(32 * MIB),
    );
    let ended = lab.run(request).await.unwrap();
    assert!(ended.exit.oom_killed, "{:?}", ended.exit);
    assert!(ended.exit.oom_kills >= 1);
    let peak = ended.exit.peak_memory.unwrap();
    assert!(peak > 24 * MIB && peak <= 32 * MIB, "{peak}");
}

#[tokio::test]
async fn a_killed_child_is_told_even_when_the_container_ends_well() {
    let lab = Lab::new();
    // A single process that ends when it is killed. With a second one, the kernel might kill the
    // shell next.
    let script = "dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null; echo survived; exit 0";
    let ended = lab
        .run(limited(shell(script), memory(32 * MIB)))
        .await
        .unwrap();
    assert_eq!(ended.exit.status, ExitStatus::Code(0), "{}", ended.stderr);
    assert_eq!(ended.stdout, "survived\n");
    assert!(ended.exit.oom_killed, "{:?}", ended.exit);
}

#[tokio::test]
async fn exit_137_without_the_kernel_is_not_taken_for_lack_of_memory() {
    let lab = Lab::new();
    let ended = lab
        .run(limited(shell("exit 137"), memory(64 * MIB)))
        .await
        .unwrap();
    assert_eq!(ended.code(), 137);
    assert!(!ended.exit.oom_killed);
    assert_eq!(ended.exit.oom_kills, 0);
}

#[tokio::test]
async fn too_little_memory_to_start_in_is_refused() {
    let lab = Lab::new();
    let error = lab
        .run(limited(exec(&["true"]), memory(MIB)))
        .await
        .err()
        .unwrap();
    assert!(
        matches!(error, EngineError::Start(StartError::MemoryTooSmall { .. })),
        "{error}"
    );
    // The lowest accepted limit is enough.
    let ended = lab
        .run(limited(exec(&["true"]), memory(6 * MIB)))
        .await
        .unwrap();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}

#[tokio::test]
async fn cpus_processes_and_shared_memory_are_limited() {
    let lab = Lab::new();
    let limits = Limits {
        vcpus: Some(0.5),
        memory_bytes: Some(64 * MIB),
        pids: Some(12),
        cpuset: Some("0".into()),
    };
    let script = "grep Cpus_allowed_list /proc/self/status; nproc; \
        cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max; \
        df -k /dev/shm | tail -1 | awk '{print $2}'; \
        i=0; while [ $i -lt 30 ]; do sleep 2 & i=$((i+1)); done; echo never";
    let ended = lab
        .run(limited(shell(script), limits.clone()))
        .await
        .unwrap();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(
        lines[..4],
        ["Cpus_allowed_list:\t0", "1", "50000", "65536"],
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("fork"), "{}", ended.stderr);
    assert!(lab.engine.unenforced_limits(&limits, None).await.is_empty());
}

#[tokio::test]
async fn without_a_limit_there_still_is_one_on_processes() {
    let lab = Lab::new();
    let ended = lab
        .run(shell(
            "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max",
        ))
        .await
        .unwrap();
    let all: u64 = std::fs::read_to_string("/proc/sys/kernel/pid_max")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let limit: u64 = ended.stdout.trim().parse().unwrap();
    // The node keeps most of its processes.
    assert!(limit >= 1_000 && limit < all / 4, "{limit} of {all}");
}

#[tokio::test]
async fn cpus_that_this_process_may_not_use_are_refused() {
    let lab = Lab::new();
    for cpus in ["4000", "x", ""] {
        let limits = Limits {
            cpuset: Some(cpus.into()),
            ..Limits::default()
        };
        let error = lab
            .run(limited(exec(&["true"]), limits))
            .await
            .err()
            .unwrap();
        assert!(
            matches!(
                error,
                EngineError::Start(StartError::CpusetNotAllowed { .. })
            ),
            "{cpus}: {error}"
        );
        assert!(!error.is_user_error());
    }
}

/// A number that no real GPU of a test machine has.
const FAKE_GPU: u32 = 97;

struct FakeNode(String);

impl FakeNode {
    fn new(name: &str, major: u32, minor: u32) -> Self {
        let path = format!("/dev/{name}");
        let _ = fs::remove_file(&path);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::from_raw_mode(0o666),
            rustix::fs::makedev(major, minor),
        )
        .unwrap();
        Self(path)
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn granted(id: &str) -> GpuGrant {
    GpuGrant {
        stack: GpuStack::Cuda,
        ids: vec![id.to_owned()],
    }
}

#[tokio::test]
async fn only_granted_gpus_are_seen_and_can_be_opened() {
    let lab = Lab::new();
    // The numbers of /dev/zero: a node that can really be opened where it is allowed.
    let _granted = FakeNode::new(&format!("nvidia{FAKE_GPU}"), 1, 5);
    let _other = FakeNode::new(&format!("nvidia{}", FAKE_GPU + 1), 10, 229);
    let mut request = shell(
        "ls /dev | grep nvidia; echo $CUDA_VISIBLE_DEVICES; head -c 3 /dev/nvidia97 | wc -c; \
         mknod /dev/mine c 10 229 && cat /dev/mine",
    );
    request.gpus = Some(
        gpu::access(&granted(&FAKE_GPU.to_string()), &[])
            .await
            .unwrap(),
    );
    let ended = lab.run(request).await.unwrap();
    assert_eq!(
        ended.stdout,
        format!("nvidia{FAKE_GPU}\n0\n3\n"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("not permitted"), "{}", ended.stderr);

    let ended = lab
        .run(shell(
            "ls /dev | grep -c nvidia; echo ${CUDA_VISIBLE_DEVICES-unset}",
        ))
        .await
        .unwrap();
    assert_eq!(ended.stdout, "0\nunset\n");

    let error = gpu::access(&granted("1234"), &[]).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("GPU 1234 was granted but cannot be given"),
        "{error}"
    );
}

//! Containers that use more than they may, and those that do not.

use super::*;
use crate::stats::ProcessTree;
use cgroup::{Cgroup, Scope};
use std::fs;
use std::sync::Mutex;

#[tokio::test]
async fn a_directory_that_fills_up_is_warned_of_and_then_over() {
    let dir = tempfile::tempdir().unwrap();
    let disk = |measure, resource, allowed| DirectoryLimit {
        dir: dir.path().to_owned(),
        measure,
        resource,
        allowed,
    };
    let allowance = UsageMonitor {
        disks: vec![
            disk(Measure::Files, Resource::ScratchFiles, 1000),
            disk(Measure::Length, Resource::OutputBytes, 1000),
        ],
        scratch: dir.path().to_owned(),
        ..UsageMonitor::default()
    };
    fs::write(dir.path().join("x"), vec![1; 950]).unwrap();
    let warnings = Mutex::new(vec![]);
    let warn = |text: String| {
        warnings.lock().unwrap().push(text);
        fs::write(dir.path().join("y"), vec![1; 100]).unwrap();
    };
    let over = allowance.wait_for_excess(None, &warn).await;
    assert_eq!((over.resource, over.used), (Resource::OutputBytes, 1050));
    assert_eq!(warnings.lock().unwrap().len(), 1);
    assert!(allowance.disks[0].exceeded(&[]).is_none());
    assert!(allowance.disks[1].exceeded(&[]).is_some());
}

#[tokio::test]
async fn what_a_container_writes_anywhere_counts_and_its_inputs_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, size: usize| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![1; size]).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    };
    write("scratch/files/input", 1 << 20);
    let allowance = UsageMonitor {
        scratch: dir.path().join("scratch"),
        layers_outside_scratch: vec![dir.path().join("cache/upper"), dir.path().join("none")],
        requested_scratch: Some(1 << 20),
        ..UsageMonitor::default()
    };
    allowance.measure_start().await;
    write("scratch/files/out", 300 << 10);
    write("cache/upper/etc/root", 300 << 10);
    let waiting = allowance.wait_for_excess(None, &|_| {});
    let early = tokio::time::timeout(Duration::from_millis(500), waiting).await;
    assert!(early.is_err(), "{early:?}");
    write("scratch/container-1/upper/root", 600 << 10);
    let over = allowance.wait_for_excess(None, &|_| {}).await;
    assert_eq!(over.resource, Resource::RequestedScratch);
    assert_eq!(over.used, 1200 << 10);
    assert_eq!(allowance.exceeded_at_end().await, Some(over));
    let files = UsageMonitor {
        requested_scratch: None,
        requested_files: Some(6),
        at_start: allowance.at_start.clone(),
        scratch: allowance.scratch.clone(),
        ..UsageMonitor::default()
    };
    // out, upper, root and two directories; the input was there.
    assert_eq!(files.exceeded_at_end().await, None);
    write("scratch/files/more", 0);
    write("scratch/files/and-more", 0);
    write("scratch/files/and-another", 0);
    let over = files.wait_for_excess(None, &|_| {}).await;
    assert_eq!((over.resource, over.used), (Resource::ScratchFiles, 7));
    let of_site = DirectoryLimit {
        dir: allowance.scratch.clone(),
        measure: Measure::Bytes,
        resource: Resource::ScratchBytes,
        allowed: 2000 << 10,
    };
    let allowance = UsageMonitor {
        requested_scratch: None,
        disks: vec![of_site],
        ..allowance
    };
    let over = allowance.exceeded_at_end().await;
    assert_eq!(over.map(|over| over.used), Some(2224 << 10));
}

#[tokio::test]
async fn cpu_time_is_counted_and_without_limits_nothing_is() {
    let own = || {
        let own = Cgroup::of_process(std::process::id()).unwrap();
        Some(UsageSource::Group(own, Scope::Own))
    };
    let no_warning = |text: String| panic!("{text}");
    let nothing = UsageMonitor::default();
    let waiting = nothing.wait_for_excess(own(), &no_warning);
    assert!(
        tokio::time::timeout(Duration::from_millis(50), waiting)
            .await
            .is_err()
    );

    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("cpu.stat"),
        "user_usec 2000000\nsystem_usec 500000\n",
    )
    .unwrap();
    let group = Cgroup {
        v2: Some(dir.path().to_owned()),
        ..Cgroup::default()
    };
    let allowance = UsageMonitor {
        cpu_time: Some(Duration::from_secs(2)),
        ..UsageMonitor::default()
    };
    let group = UsageSource::Group(group, Scope::Own);
    let over = allowance.wait_for_excess(Some(group), &no_warning).await;
    assert_eq!((over.resource, over.used), (Resource::CpuTime, 2500));
}

#[tokio::test]
async fn memory_that_nothing_else_limits_is_measured_in_its_processes() {
    let script = "x=$(head -c 50000000 /dev/zero | tr '\\0' x); echo ready; read line";
    let mut shell = std::process::Command::new("sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let output = std::io::BufReader::new(shell.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut { output }, &mut ready).unwrap();
    let source = || ProcessTree::of_process(shell.id()).map(UsageSource::Processes);
    let monitor = |memory, watches_memory| UsageMonitor {
        memory: Some(memory),
        watches_memory,
        ..UsageMonitor::default()
    };
    let no_warning = |text: String| panic!("{text}");
    let small = monitor(32 << 20, true);
    let over = small.wait_for_excess(source(), &no_warning).await;
    assert_eq!(over.resource, Resource::WatchedMemory);
    assert!((50_000_000..300 << 20).contains(&over.used), "{over}");
    for other in [monitor(1 << 30, true), monitor(1, false)] {
        let waiting = other.wait_for_excess(source(), &no_warning);
        let early = tokio::time::timeout(Duration::from_millis(300), waiting).await;
        assert!(early.is_err(), "{early:?}");
    }
    shell.kill().unwrap();
    shell.wait().unwrap();
}

/// The kernel takes the pages of a file back where it enforces the limit.
#[tokio::test]
async fn mapped_files_are_no_memory_of_a_container() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mapped");
    fs::write(&file, vec![1; 64 << 20]).unwrap();
    let script = "import mmap, sys
f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)
print('ready', sum(m[i] for i in range(0, len(m), 4096)), flush=True); input()";
    let mut python = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(&file)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let output = std::io::BufReader::new(python.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut { output }, &mut ready).unwrap();
    assert_eq!(ready, "ready 16384\n");
    let mut tree = ProcessTree::of_process(python.id()).unwrap();
    assert!(tree.measure().memory.unwrap().rss > 64 << 20);
    // Near its limit, the exact figures are taken.
    for limit in [u64::MAX, 1] {
        let used = tree.measure_unreclaimable(limit).memory.unwrap();
        assert!((1 << 20..32 << 20).contains(&used.rss), "{limit}: {used:?}");
    }
    python.kill().unwrap();
    python.wait().unwrap();
}

#[tokio::test]
async fn without_a_control_group_the_cpu_time_of_its_processes_is_counted() {
    let mut busy = std::process::Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    let tree = ProcessTree::of_process(busy.id()).unwrap();
    let allowance = UsageMonitor {
        cpu_time: Some(Duration::from_millis(100)),
        memory: Some(1),
        ..UsageMonitor::default()
    };
    // The sample may be taken below the limit, or only above it.
    let warnings = Mutex::new(vec![]);
    let warn = |text: String| warnings.lock().unwrap().push(text);
    let cumulative = allowance.wait_for_excess(Some(UsageSource::Processes(tree)), &warn);
    let over = tokio::time::timeout(Duration::from_secs(60), cumulative).await;
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert_eq!(over.unwrap().resource, Resource::CpuTime);
    let warnings = warnings.into_inner().unwrap();
    assert!(
        warnings.iter().all(|text| text.contains("CPU")),
        "{warnings:?}"
    );
}

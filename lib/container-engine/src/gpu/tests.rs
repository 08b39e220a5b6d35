//! Nodes with GPUs, made of directories, and the GPU access of a container on each.

use super::*;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

fn grant(stack: GpuStack, ids: &[&str]) -> GpuGrant {
    GpuGrant {
        stack,
        ids: ids.iter().map(|s| (*s).to_owned()).collect(),
    }
}

/// A node with two NVIDIA and two AMD GPUs. `None` where the test may not make device nodes.
fn host() -> Option<(tempfile::TempDir, HostGpus)> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        eprintln!("SKIPPED: this test needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("dev/dri")).unwrap();
    for (bus, uuid, minor) in [("0000:01:00.0", "GPU-aa", 1), ("0000:02:00.0", "GPU-ab", 0)] {
        let information = dir.path().join("proc/gpus").join(bus);
        fs::create_dir_all(&information).unwrap();
        let text =
            format!("Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
        fs::write(information.join("information"), text).unwrap();
    }
    for (part, minor) in [("gi2", 21), ("gi2/ci0", 22)] {
        let slice = dir.path().join("proc/capabilities/gpu1/mig").join(part);
        fs::create_dir_all(&slice).unwrap();
        let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        fs::write(slice.join("access"), text).unwrap();
    }
    fs::create_dir_all(dir.path().join("dev/nvidia-caps")).unwrap();
    for (name, major, minor) in [
        ("nvidia0", 195, 0),
        ("nvidia1", 195, 1),
        ("nvidiactl", 195, 255),
        ("nvidia-caps/nvidia-cap21", 511, 21),
        ("nvidia-caps/nvidia-cap22", 511, 22),
        ("kfd", 234, 0),
        ("dri/renderD128", 226, 128),
        ("dri/renderD129", 226, 129),
    ] {
        let path = dir.path().join("dev").join(name);
        let device = makedev(major, minor);
        mknodat(
            CWD,
            &path,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            device,
        )
        .unwrap();
    }
    let host = HostGpus {
        dev: dir.path().join("dev"),
        nvidia_proc: dir.path().join("proc"),
        kfd_nodes: dir.path().join("kfd"),
        container_cli_list: None,
        linker_cache: "2 libs found\n\
            \tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n\
            \tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n\
            \tlibc.so.6 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libc.so.6\n"
            .into(),
        programs: dir.path().to_owned(),
    };
    Some((dir, host))
}

fn paths(access: &GpuAccess) -> Vec<&str> {
    access
        .devices
        .iter()
        .map(|d| d.path.to_str().unwrap())
        .collect()
}

#[test]
fn only_the_granted_gpus() {
    let Some((_dir, host)) = host() else {
        return;
    };
    let by_uuid = host
        .without_cdi(&grant(GpuStack::Cuda, &["GPU-aa"]))
        .unwrap();
    assert_eq!(paths(&by_uuid), ["/dev/nvidia1", "/dev/nvidiactl"]);
    assert_eq!(
        (by_uuid.devices[0].major, by_uuid.devices[0].minor),
        (195, 1)
    );
    assert_eq!(
        by_uuid.environment,
        [("CUDA_VISIBLE_DEVICES".into(), "0".into())]
    );
    assert_eq!(by_uuid.binds.len(), 1);
    assert_eq!(
        by_uuid.binds[0].target,
        Path::new("/usr/local/nvidia/lib64/libcuda.so.1")
    );

    let amd = host.without_cdi(&grant(GpuStack::Rocm, &["1"])).unwrap();
    assert_eq!(paths(&amd), ["/dev/dri/renderD129", "/dev/kfd"]);
    assert_eq!(
        amd.environment,
        [("ROCR_VISIBLE_DEVICES".into(), "0".into())]
    );
}

#[test]
fn what_is_not_there_is_said() {
    let Some((_dir, mut host)) = host() else {
        return;
    };
    for (stack, id, expected) in [
        (GpuStack::Cuda, "7", "/dev/nvidia7"),
        (GpuStack::Cuda, "GPU-zz", "no GPU of that name"),
        (GpuStack::Cuda, "GPU-a", "several GPUs"),
        (GpuStack::Cuda, "MIG-1", "nvidia-ctk cdi generate"),
        (GpuStack::Cuda, "MIG-GPU-aa/9/0", "gi9/access"),
        (GpuStack::Rocm, "9", "/dev/dri/renderD137"),
        (GpuStack::Rocm, "x", "only GPU numbers"),
    ] {
        let error = host
            .without_cdi(&grant(stack, &[id]))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected) && error.contains(id), "{error}");
    }
    host.linker_cache.clear();
    let error = host
        .without_cdi(&grant(GpuStack::Cuda, &["0"]))
        .unwrap_err();
    assert!(error.to_string().contains("libcuda"), "{error}");
}

#[test]
fn a_slice_of_a_gpu_comes_with_its_capabilities() {
    let Some((_dir, mut host)) = host() else {
        return;
    };
    let nodes = [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps/nvidia-cap22",
        "/dev/nvidiactl",
    ];
    let old = host
        .without_cdi(&grant(GpuStack::Cuda, &["MIG-GPU-aa/2/0"]))
        .unwrap();
    assert_eq!(paths(&old), nodes);
    assert_eq!(
        old.environment,
        [("CUDA_VISIBLE_DEVICES".into(), "MIG-GPU-aa/2/0".into())]
    );
    // The program for it names the slice's files.
    host.container_cli_list = Some(
        "/dev/nvidiactl\n/dev/nvidia1\n/usr/lib/x86_64-linux-gnu/libcuda.so.1\n\
         /proc/driver/nvidia/capabilities/gpu1/mig/gi2/access\n\
         /proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access\n\
         /lib/firmware/nvidia/gsp.bin\n"
            .into(),
    );
    let new = host
        .without_cdi(&grant(GpuStack::Cuda, &["MIG-77"]))
        .unwrap();
    assert_eq!(paths(&new), nodes);
    let targets: Vec<_> = new
        .binds
        .iter()
        .map(|b| b.target.to_str().unwrap())
        .collect();
    assert_eq!(
        targets,
        [
            "/usr/local/nvidia/lib64/libcuda.so.1",
            "/lib/firmware/nvidia/gsp.bin"
        ]
    );
}

#[test]
fn amd_s_render_nodes_are_counted_as_the_kernel_does() {
    let Some((dir, host)) = host() else {
        return;
    };
    // A CPU, then GPUs of which the first has the second node: another card has the first.
    for (number, render) in [(0, 0), (1, 129), (2, 128)] {
        let node = dir.path().join("kfd").join(number.to_string());
        fs::create_dir_all(&node).unwrap();
        fs::write(
            node.join("properties"),
            format!("simd_count 0\ndrm_render_minor {render}\n"),
        )
        .unwrap();
    }
    let first = host.without_cdi(&grant(GpuStack::Rocm, &["0"])).unwrap();
    assert_eq!(paths(&first), ["/dev/dri/renderD129", "/dev/kfd"]);
    let error = host
        .without_cdi(&grant(GpuStack::Rocm, &["2"]))
        .unwrap_err();
    assert!(
        error.to_string().contains("knows 2 of AMD's GPUs"),
        "{error}"
    );
}

#[test]
fn specifications_alone_say_what_belongs_to_a_gpu_where_they_are_about_its_kind() {
    let Some((dir, host)) = host() else {
        return;
    };
    let specs = dir.path().join("cdi");
    fs::create_dir(&specs).unwrap();
    let device = |name: &str, node: &str| {
        serde_json::json!({"name": name, "containerEdits": {
            "env": [format!("GPU={name}")],
            "deviceNodes": [{"path": node, "hostPath": "/dev/zero"}],
        }})
    };
    let spec = serde_json::json!({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
        "devices": [device("0", "/dev/nvidia0"), device("1", "/dev/nvidia1")]});
    fs::write(specs.join("nvidia.json"), spec.to_string()).unwrap();
    let registry = Registry::read(&[specs]);
    let by_cdi = |stack, id: &str| host.by_cdi(&grant(stack, &[id]), &registry);
    let names = |id: &str| by_cdi(GpuStack::Cuda, id).unwrap().unwrap().cdi_names;
    assert_eq!(names("0"), ["nvidia.com/gpu=0"]);
    // The driver maps the UUID to a device node, and the specification maps the node to a device.
    assert_eq!(names("GPU-aa"), ["nvidia.com/gpu=1"]);
    assert_eq!(names("nvidia.com/gpu=1"), ["nvidia.com/gpu=1"]);
    for id in ["7", "GPU-zz", "MIG-1", "lab.example/gpu=0"] {
        let error = by_cdi(GpuStack::Cuda, id).unwrap_err().to_string();
        assert!(error.contains("do not describe it"), "{error}");
    }
    // The specifications do not describe AMD's GPUs.
    assert_eq!(by_cdi(GpuStack::Rocm, "0").unwrap(), None);
    assert!(by_cdi(GpuStack::Rocm, "amd.com/gpu=0").is_err());
}

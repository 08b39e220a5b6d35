//! Which device nodes, driver files and variables a container gets for the GPUs granted to it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::{Bind, GpuGrant, GpuStack, StartError};

/// Where the driver's libraries appear inside the container.
const LIBRARY_DIR: &str = "/usr/local/nvidia/lib64";

/// What goes into the container. Empty without a grant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAccess {
    pub devices: Vec<DeviceNode>,
    pub binds: Vec<Bind>,
    pub environment: Vec<(String, String)>,
    /// To be put before the container's own LD_LIBRARY_PATH.
    pub library_dir: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    pub path: PathBuf,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub gid: u32,
}

/// The machine as far as GPUs are concerned. Tests make their own.
#[derive(Debug)]
pub struct Machine {
    pub dev: PathBuf,
    /// `/proc/driver/nvidia`, there while the driver is loaded.
    pub nvidia_proc: PathBuf,
    /// What `ldconfig -p` prints.
    pub linker_cache: String,
    /// Where the driver's programs are looked for.
    pub programs: PathBuf,
}

impl Machine {
    pub fn here(linker_cache: String) -> Self {
        Self {
            dev: "/dev".into(),
            nvidia_proc: "/proc/driver/nvidia".into(),
            linker_cache,
            programs: "/usr/bin".into(),
        }
    }

    pub fn access(&self, grant: &GpuGrant) -> Result<GpuAccess, StartError> {
        match grant.stack {
            GpuStack::Cuda => self.cuda(&grant.ids),
            GpuStack::Rocm => self.rocm(&grant.ids),
        }
    }

    fn cuda(&self, ids: &[String]) -> Result<GpuAccess, StartError> {
        let mut access = GpuAccess::default();
        for id in ids {
            let index = self.cuda_minor(id)?;
            access
                .devices
                .push(self.required(id, &format!("nvidia{index}"))?);
        }
        for name in [
            "nvidiactl",
            "nvidia-uvm",
            "nvidia-uvm-tools",
            "nvidia-modeset",
        ] {
            access.devices.extend(self.node(name).ok());
        }
        // The driver numbers the devices it can open from 0.
        access
            .environment
            .push(("CUDA_VISIBLE_DEVICES".into(), numbers(ids.len())));
        if self.nvidia_proc.exists() {
            self.add_driver(&mut access, ids)?;
        }
        Ok(access)
    }

    /// The number in the name of the device node.
    fn cuda_minor(&self, id: &str) -> Result<u32, StartError> {
        let missing = |reason: &str| StartError::GpuMissing {
            id: id.to_owned(),
            reason: reason.to_owned(),
        };
        if let Ok(index) = id.parse() {
            return Ok(index);
        }
        if id.starts_with("MIG-") {
            return Err(missing(
                "it is a slice of a GPU (MIG), which the built-in engine cannot hand on; use another engine on this node",
            ));
        }
        for gpu in fs::read_dir(self.nvidia_proc.join("gpus"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let text = fs::read_to_string(gpu.path().join("information")).unwrap_or_default();
            let field = |name: &str| {
                text.lines()
                    .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
                    .map(str::trim)
            };
            if field("GPU UUID") == Some(id)
                && let Some(Ok(minor)) = field("Device Minor").map(str::parse)
            {
                return Ok(minor);
            }
        }
        Err(missing("the driver on this node knows no GPU of that name"))
    }

    fn add_driver(&self, access: &mut GpuAccess, ids: &[String]) -> Result<(), StartError> {
        let libraries = driver_libraries(&self.linker_cache);
        if !libraries
            .iter()
            .any(|(name, _)| name.starts_with("libcuda.so"))
        {
            return Err(StartError::GpuMissing {
                id: ids.join(","),
                reason: "the driver is loaded on this node, but its library libcuda.so.1 is not in the linker's cache (ldconfig -p)".into(),
            });
        }
        for (name, host) in libraries {
            access.binds.push(Bind {
                host,
                target: Path::new(LIBRARY_DIR).join(name),
                writable: false,
            });
        }
        for name in ["nvidia-smi", "nvidia-debugdump"] {
            let host = self.programs.join(name);
            if host.is_file() {
                access.binds.push(Bind {
                    target: Path::new("/usr/bin").join(name),
                    host,
                    writable: false,
                });
            }
        }
        access.library_dir = Some(LIBRARY_DIR.to_owned());
        Ok(())
    }

    fn rocm(&self, ids: &[String]) -> Result<GpuAccess, StartError> {
        let mut access = GpuAccess::default();
        for id in ids {
            let index: u32 = id.parse().map_err(|_| StartError::GpuMissing {
                id: id.clone(),
                reason: "only GPU numbers are understood for ROCm".into(),
            })?;
            let name = format!("dri/renderD{}", index.saturating_add(128));
            access.devices.push(self.required(id, &name)?);
        }
        access.devices.push(self.required(&ids.join(","), "kfd")?);
        access
            .environment
            .push(("ROCR_VISIBLE_DEVICES".into(), numbers(ids.len())));
        Ok(access)
    }

    fn required(&self, id: &str, name: &str) -> Result<DeviceNode, StartError> {
        self.node(name).map_err(|reason| StartError::GpuMissing {
            id: id.to_owned(),
            reason,
        })
    }

    fn node(&self, name: &str) -> Result<DeviceNode, String> {
        let path = self.dev.join(name);
        let shown = Path::new("/dev").join(name);
        let meta = fs::metadata(&path).map_err(|error| {
            format!("{} cannot be used on this node ({error})", shown.display())
        })?;
        if !meta.file_type().is_char_device() {
            return Err(format!("{} is not a device", shown.display()));
        }
        Ok(DeviceNode {
            path: shown,
            major: rustix::fs::major(meta.rdev()),
            minor: rustix::fs::minor(meta.rdev()),
            mode: meta.mode() & 0o777,
            gid: meta.gid(),
        })
    }
}

impl GpuAccess {
    /// Groups that own the nodes, for a container's user who is not root.
    pub fn groups(&self) -> BTreeSet<u32> {
        self.devices
            .iter()
            .map(|d| d.gid)
            .filter(|gid| *gid != 0)
            .collect()
    }
}

fn numbers(count: usize) -> String {
    (0..count)
        .map(|n| n.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

/// File name and place of each library of the driver that programs load.
fn driver_libraries(linker_cache: &str) -> Vec<(String, PathBuf)> {
    const NAMES: [&str; 17] = [
        "libcuda.so",
        "libcudadebugger.so",
        "libnvidia-ml.so",
        "libnvidia-cfg.so",
        "libnvidia-nvvm",
        "libnvidia-ptxjitcompiler.so",
        "libnvidia-opencl.so",
        "libnvidia-compiler.so",
        "libnvidia-allocator.so",
        "libnvidia-gpucomp.so",
        "libnvidia-opticalflow.so",
        "libnvidia-encode.so",
        "libnvidia-rtcore.so",
        "libnvidia-pkcs11",
        "libnvidia-sandboxutils.so",
        "libnvcuvid.so",
        "libnvoptix.so",
    ];
    let mut seen = BTreeSet::new();
    linker_cache
        .lines()
        .filter_map(|line| {
            // "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1"
            let (left, path) = line.trim().split_once(" => ")?;
            let (name, kind) = left.split_once(' ')?;
            let native = kind.contains("x86-64") || kind.contains("AArch64");
            (native && NAMES.iter().any(|n| name.starts_with(n)) && seen.insert(name.to_owned()))
                .then(|| (name.to_owned(), PathBuf::from(path)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

    fn grant(stack: GpuStack, ids: &[&str]) -> GpuGrant {
        GpuGrant {
            stack,
            ids: ids.iter().map(|s| (*s).to_owned()).collect(),
        }
    }

    /// Two NVIDIA and two AMD GPUs. `None` where the test may not make device nodes.
    fn machine() -> Option<(tempfile::TempDir, Machine)> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("dev/dri")).unwrap();
        let information = dir.path().join("proc/gpus/0000:01:00.0");
        fs::create_dir_all(&information).unwrap();
        fs::write(
            information.join("information"),
            "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-aa\nDevice Minor: \t 1\n",
        )
        .unwrap();
        for (name, major, minor) in [
            ("nvidia0", 195, 0),
            ("nvidia1", 195, 1),
            ("nvidiactl", 195, 255),
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
            .ok()?;
        }
        let machine = Machine {
            dev: dir.path().join("dev"),
            nvidia_proc: dir.path().join("proc"),
            linker_cache: "2 libs found\n\
                \tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n\
                \tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n\
                \tlibc.so.6 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libc.so.6\n"
                .into(),
            programs: dir.path().to_owned(),
        };
        Some((dir, machine))
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
        let Some((_dir, machine)) = machine() else {
            return;
        };
        let by_uuid = machine.access(&grant(GpuStack::Cuda, &["GPU-aa"])).unwrap();
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

        let amd = machine.access(&grant(GpuStack::Rocm, &["1"])).unwrap();
        assert_eq!(paths(&amd), ["/dev/dri/renderD129", "/dev/kfd"]);
        assert_eq!(
            amd.environment,
            [("ROCR_VISIBLE_DEVICES".into(), "0".into())]
        );
    }

    #[test]
    fn what_is_not_there_is_said() {
        let Some((_dir, mut machine)) = machine() else {
            return;
        };
        for (stack, id, expected) in [
            (GpuStack::Cuda, "7", "/dev/nvidia7"),
            (GpuStack::Cuda, "GPU-zz", "no GPU of that name"),
            (GpuStack::Cuda, "MIG-1", "MIG"),
            (GpuStack::Rocm, "9", "/dev/dri/renderD137"),
            (GpuStack::Rocm, "x", "only GPU numbers"),
        ] {
            let error = machine
                .access(&grant(stack, &[id]))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected) && error.contains(id), "{error}");
        }
        machine.linker_cache.clear();
        let error = machine.access(&grant(GpuStack::Cuda, &["0"])).unwrap_err();
        assert!(error.to_string().contains("libcuda"), "{error}");
    }
}

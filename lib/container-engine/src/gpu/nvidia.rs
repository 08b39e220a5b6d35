//! NVIDIA's GPUs without CDI: their nodes, those that all of them share, and the driver's files,
//! which `nvidia-container-cli` names where it is installed, and else the linker's cache.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{GpuAccess, HostGpus, numbers};
use crate::{Bind, StartError};

/// Path of the driver's libraries inside the container.
const LIBRARY_DIR: &str = "/usr/local/nvidia/lib64";
/// Nodes that all GPUs share. Not every one of them is there.
const SHARED: [&str; 4] = [
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
];

impl HostGpus {
    pub(super) fn cuda(&self, ids: &[String]) -> Result<GpuAccess, StartError> {
        let mut access = GpuAccess::default();
        for id in ids {
            if id.starts_with("MIG-") {
                self.add_slice(&mut access, id)?
            } else {
                let index = self.cuda_minor(id)?;
                access.add_device(self.required(id, &format!("nvidia{index}"))?);
            }
        }
        for name in SHARED {
            if let Ok(node) = self.node(name) {
                access.add_device(node);
            }
        }
        // The driver numbers the devices it can open from 0; slices keep their names.
        let visible = match ids.iter().any(|id| id.starts_with("MIG-")) {
            true => ids.join(","),
            false => numbers(ids.len()),
        };
        access
            .environment
            .push(("CUDA_VISIBLE_DEVICES".into(), visible));
        if self.nvidia_proc.exists() {
            self.add_driver(&mut access, ids)?;
        }
        Ok(access)
    }

    /// The number in the name of the device node. An id may be a unique prefix of a UUID, because
    /// HTCondor truncates UUIDs.
    pub(super) fn cuda_minor(&self, id: &str) -> Result<u32, StartError> {
        let missing = |reason: &str| StartError::gpu_missing(id, reason);
        if let Ok(index) = id.parse() {
            return Ok(index);
        }
        let gpus = fs::read_dir(self.nvidia_proc.join("gpus"));
        let minors: Vec<u32> = gpus
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|gpu| {
                let text = fs::read_to_string(gpu.path().join("information")).ok()?;
                let uuid = field(&text, "GPU UUID")?;
                let minor = field(&text, "Device Minor")?.parse().ok()?;
                (id.starts_with("GPU-") && uuid.starts_with(id)).then_some(minor)
            })
            .collect();
        match minors.as_slice() {
            [minor] => Ok(*minor),
            [] => Err(missing("the driver on this node knows no GPU of that name")),
            _ => Err(missing(
                "the names of several GPUs of this node begin like that",
            )),
        }
    }

    /// A slice of a GPU (MIG): the GPU's own node and those of its two capabilities.
    fn add_slice(&self, access: &mut GpuAccess, id: &str) -> Result<(), StartError> {
        let missing = |reason: String| StartError::gpu_missing(id, reason);
        let capabilities = self.nvidia_proc.join("capabilities");
        let (minor, files) = if let Some(slice) = Slice::of(id) {
            let minor = self.cuda_minor(slice.gpu)?;
            let instance = capabilities.join(format!("gpu{minor}/mig/gi{}", slice.instance));
            let part = instance.join(format!("ci{}", slice.part));
            (minor, vec![instance.join("access"), part.join("access")])
        } else {
            let container_cli_list = self.container_cli_list.as_deref().unwrap_or_default();
            let container_cli_list = Listed::of(container_cli_list);
            let minor = container_cli_list.minors.first().copied().ok_or_else(|| {
                missing("which slice of a GPU (MIG) that is, only nvidia-container-cli or CDI specifications tell: install the NVIDIA container toolkit on this node, or run \"nvidia-ctk cdi generate\"".to_owned())
            })?;
            let files = container_cli_list.capabilities.iter().map(|path| {
                let below = path.strip_prefix("/proc/driver/nvidia").unwrap_or(path);
                self.nvidia_proc.join(below)
            });
            (minor, files.collect())
        };
        access.add_device(self.required(id, &format!("nvidia{minor}"))?);
        for file in files {
            let text = fs::read_to_string(&file)
                .map_err(|error| missing(format!("{} cannot be read ({error})", file.display())))?;
            let number = field(&text, "DeviceFileMinor")
                .ok_or_else(|| missing(format!("{} names no node", file.display())))?;
            let name = format!("nvidia-caps/nvidia-cap{number}");
            access.add_device(self.required(id, &name)?);
        }
        Ok(())
    }

    fn add_driver(&self, access: &mut GpuAccess, ids: &[String]) -> Result<(), StartError> {
        let container_cli_list = Listed::of(self.container_cli_list.as_deref().unwrap_or_default());
        let libraries = driver_libraries(&self.linker_cache, &container_cli_list.libraries);
        let mut names = libraries.iter().map(|(name, _)| name);
        if !names.any(|name| name.starts_with("libcuda.so")) {
            let reason = "the driver is loaded on this node, but its library libcuda.so.1 is not in the linker's cache (ldconfig -p)";
            return Err(StartError::gpu_missing(&ids.join(","), reason));
        }
        let mut bind = |host: PathBuf, target: PathBuf| {
            access.binds.push(Bind {
                host,
                target,
                writable: false,
            });
        };
        for (name, host) in libraries {
            bind(host, Path::new(LIBRARY_DIR).join(name));
        }
        for name in ["nvidia-smi", "nvidia-debugdump"] {
            let host = self.programs.join(name);
            if host.is_file() {
                bind(host, Path::new("/usr/bin").join(name));
            }
        }
        for file in container_cli_list.firmware {
            bind(file.clone(), file);
        }
        access.library_dir = Some(LIBRARY_DIR.to_owned());
        Ok(())
    }
}

/// Parts of `MIG-GPU-<uuid>/<instance>/<part>`. Newer drivers use `MIG-<uuid>`, which has no such
/// parts.
struct Slice<'a> {
    gpu: &'a str,
    instance: u32,
    part: u32,
}

impl<'a> Slice<'a> {
    fn of(id: &'a str) -> Option<Self> {
        let mut parts = id.strip_prefix("MIG-")?.split('/');
        let gpu = parts.next().filter(|gpu| gpu.starts_with("GPU-"))?;
        let mut number = || parts.next()?.parse().ok();
        Some(Self {
            gpu,
            instance: number()?,
            part: number()?,
        })
    }
}

/// Paths that `nvidia-container-cli list` prints.
#[derive(Debug, Default)]
struct Listed {
    /// Minor numbers of GPUs' device nodes.
    minors: Vec<u32>,
    /// Below /proc/driver/nvidia.
    capabilities: Vec<PathBuf>,
    libraries: BTreeSet<PathBuf>,
    firmware: Vec<PathBuf>,
}

impl Listed {
    fn of(text: &str) -> Self {
        let mut container_cli_list = Self::default();
        for line in text.lines().map(str::trim) {
            let path = PathBuf::from(line);
            if let Some(number) = line.strip_prefix("/dev/nvidia") {
                container_cli_list.minors.extend(number.parse::<u32>());
            } else if path.starts_with("/proc/driver/nvidia/capabilities") {
                container_cli_list.capabilities.push(path);
            } else if line.contains("/firmware/") {
                container_cli_list.firmware.push(path);
            } else if line.contains(".so") {
                container_cli_list.libraries.insert(real(&path));
            }
        }
        container_cli_list
    }
}

/// `Name: value`, as the driver writes it.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
        .map(str::trim)
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Name and path of each driver library: those in `container_cli_list`, else those with known
/// names. Programs load them by the linker's names.
fn driver_libraries(
    linker_cache: &str,
    container_cli_list: &BTreeSet<PathBuf>,
) -> Vec<(String, PathBuf)> {
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
            let is_drivers = match container_cli_list.is_empty() {
                true => NAMES.iter().any(|known| name.starts_with(known)),
                false => container_cli_list.contains(&real(Path::new(path))),
            };
            (native && is_drivers && seen.insert(name.to_owned()))
                .then(|| (name.to_owned(), PathBuf::from(path)))
        })
        .collect()
}

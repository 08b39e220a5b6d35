//! Lists the GPUs of this node: from `nvidia-smi`, and for AMD from sysfs.

use std::fs;
use std::path::Path;

use tokio::process::Command;

use container_engine::GpuStack;
use container_engine::gpu::{command_output, kfd_gpus, parse_property};

const QUERY: &str = "--query-gpu=index,uuid,name,driver_version,compute_cap,memory.total";

/// One GPU. Unknown properties are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuInfo {
    pub index: u32,
    pub uuid: Option<String>,
    pub model: Option<String>,
    /// Driver version.
    pub release: Option<String>,
    /// Newest CUDA or ROCm version that the driver supports.
    pub interface: Option<String>,
    /// Compute capability, or gfx target.
    pub target: Option<String>,
    /// Bytes.
    pub memory: Option<u64>,
}

impl GpuInfo {
    /// For messages: `0 (NVIDIA H200)`.
    pub fn label(&self, id: &str) -> String {
        match &self.model {
            Some(model) => format!("{id} ({model})"),
            None => id.to_owned(),
        }
    }
}

/// Lists the GPUs; empty if nothing can be read.
pub async fn list_gpus(stack: GpuStack) -> Vec<GpuInfo> {
    match stack {
        GpuStack::Cuda => {
            let (mut table, mut more) = (Command::new("nvidia-smi"), Command::new("nvidia-smi"));
            table.args([QUERY, "--format=csv,noheader,nounits"]);
            more.args(["-q", "-d", "COMPUTE"]);
            let (table, more) = tokio::join!(command_output(&mut table), command_output(&mut more));
            nvidia(&table.unwrap_or_default(), &more.unwrap_or_default())
        }
        GpuStack::Rocm => amd(Path::new("/sys")),
    }
}

/// Parses the table, and the page that alone has the CUDA version.
fn nvidia(table: &str, page: &str) -> Vec<GpuInfo> {
    let interface = page.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "CUDA Version").then(|| value.trim().to_owned())
    });
    let gpu = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |n: usize| {
            let text = fields.get(n).filter(|text| !text.is_empty());
            text.filter(|text| !text.starts_with('[') && **text != "N/A")
                .map(|text| (*text).to_owned())
        };
        Some(GpuInfo {
            index: field(0)?.parse().ok()?,
            uuid: field(1),
            model: field(2),
            release: field(3),
            interface: interface.clone().filter(|text| text != "N/A"),
            target: field(4),
            memory: field(5)
                .and_then(|mib| mib.parse::<u64>().ok())
                .and_then(|mib| mib.checked_mul(1 << 20)),
        })
    };
    table.lines().filter_map(gpu).collect()
}

fn amd(sys: &Path) -> Vec<GpuInfo> {
    let read = |path: &Path| {
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let gpu = |(index, (render, text)): (u32, (u64, String))| {
        let device = sys.join(format!("class/drm/renderD{render}/device"));
        GpuInfo {
            index,
            uuid: parse_property(&text, "unique_id").map(|id| format!("GPU-{id:016x}")),
            model: read(&device.join("product_name")),
            release: None,
            interface: read(&sys.join("module/amdgpu/version")),
            target: parse_property(&text, "gfx_target_version").and_then(gfx),
            memory: read(&device.join("mem_info_vram_total")).and_then(|n| n.parse().ok()),
        }
    };
    let gpus = kfd_gpus(&sys.join("class/kfd/kfd/topology/nodes"));
    (0..).zip(gpus).map(gpu).collect()
}

/// `gfx90a` from 90010: the last two parts are one hexadecimal digit each.
fn gfx(version: u64) -> Option<String> {
    let (major, minor, step) = (version / 10_000, version / 100 % 100, version % 100);
    (major > 0 && minor < 16 && step < 16).then(|| format!("gfx{major}{minor:x}{step:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidia_s_table_is_understood() {
        let page =
            "\n==NVSMI LOG==\nDriver Version : 550.54.15\nCUDA Version                : 12.4\n";
        let table = "0, GPU-aa, NVIDIA H200, 550.54.15, 9.0, 143771\n\
                     1, GPU-bb, [N/A], 550.54.15, [Not Supported], [N/A]\n\
                     No devices were found\n";
        let found = nvidia(table, page);
        assert_eq!(found.len(), 2);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            found[0],
            GpuInfo {
                index: 0,
                uuid: text("GPU-aa"),
                model: text("NVIDIA H200"),
                release: text("550.54.15"),
                interface: text("12.4"),
                target: text("9.0"),
                memory: Some(143_771 << 20),
            }
        );
        assert_eq!(found[0].label("GPU-a"), "GPU-a (NVIDIA H200)");
        let bare = (&found[1].model, &found[1].target, found[1].memory);
        assert_eq!(bare, (&None, &None, None));
        assert_eq!(found[1].label("1"), "1");
        assert!(nvidia("", "").is_empty());
    }

    #[test]
    fn amd_s_files_are_understood() {
        let sys = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = sys.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let nodes = "class/kfd/kfd/topology/nodes";
        file(
            &format!("{nodes}/0/properties"),
            "simd_count 0\ndrm_render_minor 0\n",
        );
        file(
            &format!("{nodes}/1/properties"),
            "drm_render_minor 129\ngfx_target_version 90010\nunique_id 255\n",
        );
        file(&format!("{nodes}/2/properties"), "drm_render_minor 128\n");
        file(
            "class/drm/renderD129/device/mem_info_vram_total",
            "68702699520\n",
        );
        file(
            "class/drm/renderD129/device/product_name",
            "Instinct MI210\n",
        );
        file("module/amdgpu/version", "6.2.4\n");
        let found = amd(sys.path());
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].target.as_deref(), Some("gfx90a"));
        assert_eq!(found[0].uuid.as_deref(), Some("GPU-00000000000000ff"));
        assert_eq!(found[0].model.as_deref(), Some("Instinct MI210"));
        assert_eq!(found[0].memory, Some(68_702_699_520));
        assert_eq!(found[0].interface.as_deref(), Some("6.2.4"));
        assert_eq!((found[1].index, found[1].memory), (1, None));
        assert!(amd(Path::new("/no/such/place")).is_empty());
    }

    #[test]
    fn gfx_targets() {
        for (version, expected) in [
            (90_010, Some("gfx90a")),
            (90_402, Some("gfx942")),
            (110_000, Some("gfx1100")),
            (0, None),
        ] {
            assert_eq!(gfx(version).as_deref(), expected, "{version}");
        }
    }
}

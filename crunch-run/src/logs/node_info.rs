//! Writes node-info.txt: the node as the kernel describes it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use rustix::fs::statvfs;

use crate::gpu::GpuInfo;

/// The text of node-info.txt. `directories` are those whose file systems the container uses.
pub fn node_info(directories: &[&Path]) -> String {
    let mut text = String::from("Host Information\n");
    let host = rustix::system::uname();
    for part in [
        host.sysname(),
        host.nodename(),
        host.release(),
        host.version(),
        host.machine(),
    ] {
        text.push_str(&part.to_string_lossy());
        text.push(' ');
    }
    for (heading, file) in [
        ("CPU Information", "/proc/cpuinfo"),
        ("Memory Information", "/proc/meminfo"),
    ] {
        let content = fs::read_to_string(file).unwrap_or_else(|error| format!("{file}: {error}"));
        // Writing to a String cannot fail.
        let _ = write!(text, "\n\n{heading}\n{}", content.trim_end());
    }
    text.push_str("\n\nDisk Space\nFilesystem-of 1M-blocks Used Available\n");
    for dir in directories {
        let _ = match statvfs(*dir) {
            Ok(disk) => {
                let mib = |blocks: u64| blocks.saturating_mul(disk.f_frsize) >> 20;
                writeln!(
                    text,
                    "{} {} {} {}",
                    dir.display(),
                    mib(disk.f_blocks),
                    mib(disk.f_blocks.saturating_sub(disk.f_bfree)),
                    mib(disk.f_bavail)
                )
            }
            Err(error) => writeln!(text, "{}: {error}", dir.display()),
        };
    }
    text.push_str("\nDisk INodes\nFilesystem-of Inodes IUsed IFree\n");
    for dir in directories {
        if let Ok(disk) = statvfs(*dir) {
            let _ = writeln!(
                text,
                "{} {} {} {}",
                dir.display(),
                disk.f_files,
                disk.f_files.saturating_sub(disk.f_ffree),
                disk.f_favail
            );
        }
    }
    text
}

/// The GPU section, for containers that request GPUs. Lists all GPUs of the node.
pub fn gpu_info(gpus: &[GpuInfo]) -> String {
    let mut text =
        String::from("\nGPU Information\nIndex UUID Model Driver Interface Target MiB\n");
    for gpu in gpus {
        let memory = gpu.memory.map(|bytes| (bytes >> 20).to_string());
        let fields = [
            &gpu.uuid,
            &gpu.model,
            &gpu.release,
            &gpu.interface,
            &gpu.target,
            &memory,
        ];
        let _ = write!(text, "{}", gpu.index);
        for field in fields {
            let _ = write!(text, " {}", field.as_deref().unwrap_or("-"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_heading() {
        let text = node_info(&[Path::new("/"), Path::new("/no/such/dir")]);
        for heading in [
            "Host Information\n",
            "\n\nCPU Information\n",
            "\n\nMemory Information\nMemTotal:",
            "\n\nDisk Space\n",
            "\n\nDisk INodes\n",
            "/no/such/dir: ",
        ] {
            assert!(text.contains(heading), "{heading:?} in {text}");
        }
    }

    #[test]
    fn a_gpu_is_a_line() {
        let gpu = GpuInfo {
            index: 1,
            model: Some("NVIDIA H200".into()),
            memory: Some(5 << 20),
            ..GpuInfo::default()
        };
        assert!(gpu_info(&[gpu]).ends_with("\n1 - NVIDIA H200 - - - 5\n"));
    }
}

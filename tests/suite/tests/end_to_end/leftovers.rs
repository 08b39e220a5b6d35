//! Finds what must not be left on this machine once the containers of a stack have ended.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use arvados_client::ContainerUuid;

/// Processes whose arguments or open files contain `dir`, without this test's own.
pub fn processes(dir: &Path) -> Vec<(u32, String)> {
    let dir = dir.to_str().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        if pid != std::process::id() && (arguments.contains(dir) || has_open(&entry.path(), dir)) {
            found.push((pid, arguments));
        }
    }
    found
}

fn has_open(process: &Path, dir: &str) -> bool {
    let files = fs::read_dir(process.join("fd"));
    files.into_iter().flatten().flatten().any(|file| {
        let target = fs::read_link(file.path()).unwrap_or_default();
        target.to_string_lossy().contains(dir)
    })
}

/// Control groups, mounts and engine records whose name contains a container's uuid.
pub fn cgroups_mounts_and_records(containers: &BTreeSet<ContainerUuid>) -> Vec<String> {
    let names_one = |text: &str| containers.iter().any(|uuid| text.contains(uuid.as_str()));
    let mut found: Vec<String> = control_groups()
        .into_iter()
        .chain(entries(Path::new("/run/crunch-run")))
        .map(|path| path.display().to_string())
        .collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    found.extend(mounts.lines().map(str::to_owned));
    found.retain(|text| names_one(text));
    found
}

/// Reads directories only, because there are tens of thousands of files.
fn control_groups() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
                found.push(entry.path());
            }
        }
    }
    found
}

/// Files in `dirs` whose path contains a container's uuid.
pub fn paths_naming(dirs: &[PathBuf], containers: &BTreeSet<ContainerUuid>) -> Vec<String> {
    let mut found = Vec::new();
    for path in dirs.iter().flat_map(|dir| entries(dir)) {
        let name = path.display().to_string();
        if containers.iter().any(|uuid| name.contains(uuid.as_str())) {
            found.push(name);
        }
    }
    found
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Files in `dirs`, each with the first 2000 characters of its text.
pub fn contents_of(dirs: &[String]) -> Vec<(PathBuf, String)> {
    let files = dirs.iter().flat_map(|dir| entries(Path::new(dir)));
    let text = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
    let excerpt = |path: PathBuf| (path.clone(), text(&path).chars().take(2000).collect());
    files.map(excerpt).collect()
}

//! A note for each container that exists on this node, so that what a killed attempt left behind can be
//! found by the container's name.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Layout};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub group: Cgroup,
    /// Directories to remove.
    pub dirs: Vec<PathBuf>,
}

/// The name of a container's control group. `attempt` keeps two attempts at one container apart.
pub fn leaf(name: &str, attempt: &str) -> String {
    format!("{}{attempt}", leaf_prefix(name))
}

fn leaf_prefix(name: &str) -> String {
    format!("crunch-run-{name}-")
}

impl Record {
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)?;
        }
        let partial = path.with_extension("partial");
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(partial, path)
    }
}

/// Kills and removes what is left of containers called `name`. Says what it removed.
pub fn recover(run_dir: &Path, name: &str) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    let prefix = leaf_prefix(name);
    for entry in fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let file_name = entry.file_name();
        let is_ours = file_name.to_str().is_some_and(|f| f.starts_with(&prefix));
        if !is_ours {
            continue;
        }
        if let Ok(record) = serde_json::from_slice::<Record>(&fs::read(&path)?) {
            end_group(&record.group, &mut removed)?;
            for dir in record.dirs {
                if dir.exists() {
                    fs::remove_dir_all(&dir)?;
                    removed.push(format!("directory {}", dir.display()));
                }
            }
        }
        fs::remove_file(&path)?;
    }
    // Groups whose note is gone, say with a cleared /run.
    let layout = Layout::of_this_process()?;
    let mut parents: Vec<PathBuf> = layout
        .accounting()
        .map(|h| h.parent_of_containers())
        .collect();
    parents.dedup();
    for parent in parents {
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let leaf = entry.file_name();
            if let Some(leaf) = leaf.to_str().filter(|l| l.starts_with(&prefix)) {
                end_group(&layout.container_group(leaf), &mut removed)?;
            }
        }
    }
    Ok(removed)
}

fn end_group(group: &Cgroup, removed: &mut Vec<String>) -> io::Result<()> {
    if !group.exists() {
        return Ok(());
    }
    let processes = group.processes().len();
    group
        .kill(PATIENCE)
        .and_then(|()| group.remove(PATIENCE))
        .map_err(io::Error::other)?;
    if processes > 0 {
        let plural = if processes == 1 {
            "process"
        } else {
            "processes"
        };
        removed.push(format!("{processes} running {plural}"));
    }
    if let Some(dir) = group.dirs().first() {
        removed.push(format!("control group {}", dir.display()));
    }
    Ok(())
}

//! Cleans up after killed crunch-runs of this user: containers, mounts and directories. Every run
//! does this, whichever container it runs. Undelivered results stay.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::ContainerUuid;
use host_state::trash::{self, TrashWorker};

use crate::environment;
use crate::inputs::arv_mount::detach;
use crate::node::job_dir::JobDir;
use crate::node::lock_file::{LockError, LockFile};
use crate::node::registry::{self, DeadRuns, RunEntry, RunPaths};
use crate::undelivered::record::UndeliveredRun;
use container_engine::select::EngineFactory;
use container_engine::{Engine, EngineError};

/// Timeout of a cleanup. Attempts at the same containers wait meanwhile; the next run continues.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for an engine that this run does not use.
const OTHER_ENGINE_TIMEOUT: Duration = Duration::from_secs(10);

/// Cleans up with the engines of dead runs.
#[derive(Clone, Copy)]
pub struct OrphanCleaner<'a> {
    /// Engine of this run.
    pub engine: &'a dyn Engine,
    pub engines: &'a EngineFactory,
}

impl OrphanCleaner<'_> {
    /// Removes what earlier attempts at this container left with other engines.
    pub async fn clean_earlier_attempts(self, uuid: &ContainerUuid) -> Vec<String> {
        let dir = registry::directory(environment::variable);
        let mut messages = Vec::new();
        for entry in registry::dead_runs_of(&dir, uuid).unwrap_or_default() {
            match self.recover_with_recorded_engine(&entry).await {
                Ok(removed) => messages.extend(
                    removed
                        .iter()
                        .map(|what| format!("Removed {what}, left by an earlier attempt")),
                ),
                Err(error) => messages.push(error.to_string()),
            }
        }
        messages
    }

    /// Removes leftovers with this run's engine and with the recorded one.
    async fn recover(self, entry: &RunEntry) -> Result<Vec<String>, EngineError> {
        let mut removed = self.engine.recover(entry.uuid.as_str()).await?.removed;
        removed.extend(self.recover_with_recorded_engine(entry).await?);
        Ok(removed)
    }

    /// Changes the owner of the container's files to this user, so that they can be removed.
    async fn give_files(self, entry: &RunEntry, paths: &RunPaths) -> Result<(), EngineError> {
        let recorded = entry.engine.as_ref();
        let other = recorded
            .filter(|recorded| **recorded != self.engine.engine_ref())
            .map(|recorded| self.engines.for_recovery(recorded));
        let engine = other.as_deref().unwrap_or(self.engine);
        let prefix = format!("crunch-run.{}.", entry.uuid);
        let discarded = paths
            .trash_parents()
            .into_iter()
            .flat_map(|p| trash::content(&p));
        let mut dirs = scratch_dirs(paths, &entry.uuid);
        // A dispatcher may have discarded them already.
        dirs.extend(discarded.filter(|path| is_named(path, &prefix)));
        dirs.push(paths.job_dir.clone());
        for dir in dirs {
            engine.give_files(entry.uuid.as_str(), None, &dir).await?;
        }
        Ok(())
    }

    async fn recover_with_recorded_engine(
        self,
        entry: &RunEntry,
    ) -> Result<Vec<String>, EngineError> {
        let recorded = entry.engine.as_ref();
        let Some(recorded) = recorded.filter(|recorded| **recorded != self.engine.engine_ref())
        else {
            return Ok(Vec::new());
        };
        let engine = self.engines.for_recovery(recorded);
        let recovering = engine.recover(entry.uuid.as_str());
        match tokio::time::timeout(OTHER_ENGINE_TIMEOUT, recovering).await {
            Ok(recovered) => Ok(recovered?.removed),
            Err(_) => Err(EngineError::Io {
                what: format!(
                    "could not look up what {} still has of {}",
                    recorded.name, entry.uuid
                ),
                source: io::ErrorKind::TimedOut.into(),
            }),
        }
    }
}

/// Removes the discarded files of this run's directories and of dead runs in the background, for as
/// long as this process lives.
pub fn empty_trash_in_background(own: &RunPaths, cache: &Path) {
    let dir = registry::directory(environment::variable);
    let dead = registry::dead_runs(&dir).unwrap_or_default();
    let paths = dead.iter().filter_map(|entry| entry.paths.as_ref());
    let mut parents: Vec<PathBuf> = paths
        .chain([own])
        .flat_map(RunPaths::trash_parents)
        // Writable layers of containers whose scratch directory is on an unsuitable file system.
        .chain([cache.join("work")])
        .collect();
    parents.sort();
    parents.dedup();
    if let Err(error) = TrashWorker::start(parents) {
        tracing::warn!(%error, "could not start the removal of discarded files");
    }
}

/// Cleans up after all dead runs. Returns a sentence for each action or failure.
pub async fn clean_all(cleaner: OrphanCleaner<'_>) -> Vec<String> {
    let dir = registry::directory(environment::variable);
    let dead = match DeadRuns::find(&dir) {
        Ok(Some(dead)) => dead,
        Ok(None) => return Vec::new(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![format!("could not list killed runs on this node: {error}")],
    };
    let mut messages = Vec::new();
    let cleaning = async {
        for entry in dead.entries() {
            clean_one(cleaner, &dead, entry, &mut messages).await;
        }
    };
    if tokio::time::timeout(CLEANUP_TIMEOUT, cleaning)
        .await
        .is_err()
    {
        messages.push(
            "removing the leftovers of killed runs takes long; the next run continues".to_owned(),
        );
    }
    messages
}

async fn clean_one(
    cleaner: OrphanCleaner<'_>,
    dead: &DeadRuns,
    entry: &RunEntry,
    messages: &mut Vec<String>,
) {
    let RunEntry { uuid, .. } = entry;
    let _cleanup = match dead.begin(entry) {
        Ok(Some(cleanup)) => cleanup,
        Ok(None) => return,
        Err(error) => {
            let error = format!("could not clean up after the killed run of {uuid}: {error}");
            return messages.push(error);
        }
    };
    match cleaner.recover(entry).await {
        Ok(removed) => messages.extend(
            removed
                .iter()
                .map(|what| format!("Removed {what}, left by the killed run of {uuid}")),
        ),
        Err(error) => {
            messages.push(error.to_string());
            return;
        }
    }
    // Only root can remove the files that a container left under another user.
    if let Some(paths) = &entry.paths
        && !rustix::process::geteuid().is_root()
        && let Err(error) = cleaner.give_files(entry, paths).await
    {
        messages.push(error.to_string());
    }
    let removed = discard_files(entry).await;
    // The entry tells later runs where the files are.
    let has_trash = entry.paths.as_ref().is_some_and(RunPaths::has_trash);
    let removed = removed.and_then(|sentence| match has_trash {
        true => Ok(sentence),
        false => dead.remove_entry(entry).map(|()| sentence),
    });
    match removed {
        Ok(sentence) => messages.extend(sentence),
        Err(error) => {
            let location = entry.paths.as_ref().map(|paths| paths.job_dir.display());
            let location = location.map_or(String::new(), |dir| format!(" in {dir}"));
            messages.push(format!(
                "Could not remove what the killed run of {uuid} left{location}: {error}"
            ));
        }
    }
}

async fn discard_files(entry: &RunEntry) -> io::Result<Option<String>> {
    let Some(paths) = entry.paths.clone() else {
        return Ok(None);
    };
    let uuid = entry.uuid.clone();
    let discarding = tokio::task::spawn_blocking(move || discard(&paths, &uuid));
    discarding
        .await
        .unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Moves the run's files into the trash. In a dispatcher's directory, only those that the run would
/// have discarded itself.
fn discard(paths: &RunPaths, uuid: &ContainerUuid) -> io::Result<Option<String>> {
    // Another user may have replaced a directory in a world-writable place.
    let is_ours = fs::symlink_metadata(&paths.job_dir)
        .is_ok_and(|facts| facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw());
    if !is_ours {
        return scratch(paths, uuid).map(|()| None);
    }
    let dir = JobDir::open(&paths.job_dir)?;
    // `crunch-run resume` may be delivering the results.
    let _lock = match LockFile::acquire(&dir.lock()) {
        Ok(lock) => lock,
        Err(LockError::Held { .. }) => return Ok(None),
        Err(LockError::Io { source, .. }) => return Err(source),
    };
    detach(&dir.arv_mount_point())?;
    if has_results(&dir) {
        let path = dir.path().display();
        return Ok(Some(format!(
            "The killed run of {uuid} left results: `crunch-run resume {path}` delivers them"
        )));
    }
    scratch(paths, uuid)?;
    if !paths.own {
        return trash::discard(&dir.scratch()).map(|()| None);
    }
    trash::discard(dir.path())?;
    Ok(Some(format!(
        "Removed {}, left by the killed run of {uuid}",
        dir.path().display()
    )))
}

/// An unreadable record may belong to results as well.
fn has_results(dir: &JobDir) -> bool {
    match UndeliveredRun::read(dir) {
        Ok(Some(undelivered_run)) => undelivered_run.recorded.is_none(),
        Ok(None) => false,
        Err(_) => true,
    }
}

fn scratch(paths: &RunPaths, uuid: &ContainerUuid) -> io::Result<()> {
    let dirs = scratch_dirs(paths, uuid);
    dirs.iter().try_for_each(|dir| trash::discard(dir))
}

fn scratch_dirs(paths: &RunPaths, uuid: &ContainerUuid) -> Vec<PathBuf> {
    let Some(parent) = &paths.scratch else {
        return Vec::new();
    };
    let prefix = format!("crunch-run.{uuid}.");
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| is_named(path, &prefix))
        .collect()
}

fn is_named(path: &Path, prefix: &str) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_its_place_is_not_touched() {
        let top = tempfile::tempdir().unwrap();
        let (link, target) = (top.path().join("link"), top.path().join("target"));
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let paths = RunPaths {
            job_dir: link.clone(),
            own: true,
            scratch: None,
        };
        discard(&paths, &ContainerUuid::generate("zzzzz")).unwrap();
        assert!(target.exists() && link.is_symlink());
    }

    #[test]
    fn only_what_nobody_needs_goes() {
        let top = tempfile::tempdir().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let scratch = top.path().join("scratch");
        for (name, own, undelivered, held, stays) in [
            ("own", true, false, false, false),
            ("dispatcher's", false, false, false, true),
            ("results", true, true, false, true),
            ("being delivered", true, false, true, true),
        ] {
            let dir = top.path().join(name);
            let ours = scratch.join(format!("crunch-run.{uuid}.1"));
            let other = scratch.join("crunch-run.zzzzz-dz642-another.1");
            for dir in [&dir, &ours, &other] {
                fs::create_dir_all(dir).unwrap();
            }
            if undelivered {
                fs::write(dir.join("undelivered.json"), "{}").unwrap();
            }
            let _lock = held.then(|| LockFile::acquire(&dir.join("lock")).unwrap());
            let paths = RunPaths {
                job_dir: dir.clone(),
                own,
                scratch: Some(scratch.clone()),
            };
            discard(&paths, &uuid).unwrap();
            assert_eq!(dir.exists(), stays, "{name}");
            assert_eq!(ours.exists(), undelivered || held, "{name}");
            assert!(other.exists());
        }
    }
}

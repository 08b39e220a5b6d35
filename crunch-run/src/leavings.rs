//! What crunch-runs of this user that were killed have left on this node: containers, mounts and directories. The
//! next one, whichever container it runs, takes that away. Results that wait to be delivered stay.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::engine::choose::Makers;
use crate::engine::{Engine, EngineError};
use crate::environment;
use crate::job_dir::JobDir;
use crate::lock_file::{LockError, LockFile};
use crate::mounts::arv_mount::detach;
use crate::registry::{self, Dead, Entry, Places};
use crate::run::Left;

/// Others of this user cannot begin meanwhile, and the next one goes on with it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Another engine than this run's may hang, and this run does not need it.
const OTHER_ENGINES_PATIENCE: Duration = Duration::from_secs(10);

/// What asks the engines of runs that are gone.
#[derive(Clone, Copy)]
pub struct Sweeper<'a> {
    /// The one of this run.
    pub engine: &'a dyn Engine,
    pub makers: &'a Makers,
}

impl Sweeper<'_> {
    /// Removes what earlier attempts at the container that begins left with other engines than this run's.
    pub async fn earlier_attempts(self, uuid: &ContainerUuid) -> Vec<String> {
        let dir = registry::directory(environment::variable);
        let mut said = Vec::new();
        for entry in registry::killed(&dir, uuid).unwrap_or_default() {
            match self.recover_elsewhere(&entry).await {
                Ok(removed) => said.extend(
                    removed
                        .iter()
                        .map(|what| format!("An earlier attempt left {what}; it is removed")),
                ),
                Err(error) => said.push(error.to_string()),
            }
        }
        said
    }

    /// With this run's engine, which may have run it too, and with the one that is known to have.
    async fn recover(self, entry: &Entry) -> Result<Vec<String>, EngineError> {
        let mut removed = self.engine.recover(entry.uuid.as_str()).await?.removed;
        removed.extend(self.recover_elsewhere(entry).await?);
        Ok(removed)
    }

    /// What its container left under another user's id belongs to this user then, and can be removed.
    async fn give_files(self, entry: &Entry, places: &Places) -> Result<(), EngineError> {
        let noted = entry.engine.as_ref();
        let other = noted
            .filter(|noted| **noted != self.engine.note())
            .map(|noted| self.makers.noted(noted));
        let engine = other.as_deref().unwrap_or(self.engine);
        let mut dirs = scratch_dirs(places, &entry.uuid);
        dirs.push(places.job_dir.clone());
        for dir in dirs {
            engine.give_files(entry.uuid.as_str(), None, &dir).await?;
        }
        Ok(())
    }

    async fn recover_elsewhere(self, entry: &Entry) -> Result<Vec<String>, EngineError> {
        let noted = entry.engine.as_ref();
        let Some(noted) = noted.filter(|noted| **noted != self.engine.note()) else {
            return Ok(Vec::new());
        };
        let engine = self.makers.noted(noted);
        let recovering = engine.recover(entry.uuid.as_str());
        match tokio::time::timeout(OTHER_ENGINES_PATIENCE, recovering).await {
            Ok(recovered) => Ok(recovered?.removed),
            Err(_) => Err(EngineError::Io {
                what: format!("what {} has of {} is not known", noted.name, entry.uuid),
                source: io::ErrorKind::TimedOut.into(),
            }),
        }
    }
}

/// A sentence for each thing that was done or could not be.
pub async fn sweep(sweeper: Sweeper<'_>) -> Vec<String> {
    let dir = registry::directory(environment::variable);
    let dead = match Dead::find(&dir) {
        Ok(Some(dead)) => dead,
        Ok(None) => return Vec::new(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![format!("What was left by others is not known: {error}")],
    };
    let mut said = Vec::new();
    let sweeping = async {
        for entry in dead.entries() {
            tidy(sweeper, &dead, entry, &mut said).await;
        }
    };
    if tokio::time::timeout(PATIENCE, sweeping).await.is_err() {
        said.push("What is left by others takes long to remove; the next run goes on".to_owned());
    }
    said
}

async fn tidy(sweeper: Sweeper<'_>, dead: &Dead, entry: &Entry, said: &mut Vec<String>) {
    let Entry { uuid, .. } = entry;
    match sweeper.recover(entry).await {
        Ok(removed) => said.extend(
            removed
                .iter()
                .map(|what| format!("The killed run of {uuid} left {what}; it is removed")),
        ),
        Err(error) => {
            said.push(error.to_string());
            return;
        }
    }
    let mut removed = remove_files(entry).await;
    if let (Err(error), Some(places)) = (&removed, &entry.places)
        && error.kind() == io::ErrorKind::PermissionDenied
    {
        match sweeper.give_files(entry, places).await {
            Ok(()) => removed = remove_files(entry).await,
            Err(error) => said.push(error.to_string()),
        }
    }
    match removed.and_then(|sentence| dead.forget(entry).map(|()| sentence)) {
        Ok(sentence) => said.extend(sentence),
        Err(error) => {
            let place = entry.places.as_ref().map(|places| places.job_dir.display());
            let place = place.map_or(String::new(), |dir| format!(" in {dir}"));
            said.push(format!(
                "What the killed run of {uuid} left{place} cannot be removed and stays: {error}"
            ));
        }
    }
}

async fn remove_files(entry: &Entry) -> io::Result<Option<String>> {
    let Some(places) = entry.places.clone() else {
        return Ok(None);
    };
    let uuid = entry.uuid.clone();
    let removing = tokio::task::spawn_blocking(move || remove(&places, &uuid));
    removing.await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Its files; of a dispatcher's directory only what the run itself would have removed.
fn remove(places: &Places, uuid: &ContainerUuid) -> io::Result<Option<String>> {
    // Where everybody may write, somebody else may have put something in its place.
    let is_ours = fs::symlink_metadata(&places.job_dir)
        .is_ok_and(|facts| facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw());
    if !is_ours {
        return scratch(places, uuid).map(|()| None);
    }
    let dir = JobDir::given(&places.job_dir)?;
    // Somebody may be delivering what it left.
    let _lock = match LockFile::take(&dir.lock()) {
        Ok(lock) => lock,
        Err(LockError::Held { .. }) => return Ok(None),
        Err(LockError::Io { source, .. }) => return Err(source),
    };
    detach(&dir.keep())?;
    if has_results(&dir) {
        let place = dir.path().display();
        return Ok(Some(format!(
            "The killed run of {uuid} left results; `crunch-run resume {place}` delivers them"
        )));
    }
    scratch(places, uuid)?;
    if !places.own {
        return remove_tree(&dir.scratch()).map(|()| None);
    }
    fs::remove_dir_all(dir.path())?;
    Ok(Some(format!(
        "The killed run of {uuid} left {}; it is removed",
        dir.path().display()
    )))
}

/// What cannot be understood may be results as well.
fn has_results(dir: &JobDir) -> bool {
    match Left::read(dir) {
        Ok(Some(left)) => left.recorded.is_none(),
        Ok(None) => false,
        Err(_) => true,
    }
}

fn scratch(places: &Places, uuid: &ContainerUuid) -> io::Result<()> {
    let dirs = scratch_dirs(places, uuid);
    dirs.iter().try_for_each(|dir| remove_tree(dir))
}

fn scratch_dirs(places: &Places, uuid: &ContainerUuid) -> Vec<PathBuf> {
    let Some(parent) = &places.scratch else {
        return Vec::new();
    };
    let prefix = format!("crunch-run.{uuid}.");
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect()
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
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
        let places = Places {
            job_dir: link.clone(),
            own: true,
            scratch: None,
        };
        remove(&places, &ContainerUuid::generate("zzzzz")).unwrap();
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
            let _lock = held.then(|| LockFile::take(&dir.join("lock")).unwrap());
            let places = Places {
                job_dir: dir.clone(),
                own,
                scratch: Some(scratch.clone()),
            };
            remove(&places, &uuid).unwrap();
            assert_eq!(dir.exists(), stays, "{name}");
            assert_eq!(ours.exists(), undelivered || held, "{name}");
            assert!(other.exists());
        }
    }
}

//! What the dispatchers of one machine say that their jobs hold, so that they share its CPUs,
//! memory and GPUs.
//!
//! The directory belongs to no user: everybody may add files, and nobody may change another's
//! (mode 1777). A file is one job: its reservation, and the process that holds it. It counts while
//! that process lives and was started by the owner of the file. What others wrote is not trusted
//! further: it can only make jobs here wait, and whose it is is told. Of each owner a bounded
//! number of files counts, and a file is read once.
//!
//! Scratch space is not in it, because what is free on the disk says it.
//!
//! A dispatcher whose first job waits for what others hold says that, too: what it wants, and since
//! when. The others leave it room, so that a long queue of one person does not keep out another's.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arvados_client::ContainerUuid;
use host_state::{ProcessIdentity, lock};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::reservation::Reservation;

const LOCK_FILE: &str = "lock";
/// End of the name of a file with a want.
const WANT_SUFFIX: &str = ".waits";
/// Time for which a want counts. Its dispatcher may hang, or not reach its server.
pub const WANT_TTL: Duration = Duration::from_secs(10);
/// Timeout of the lock. Another user may hold it for ever; then jobs start without it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a claim: that of some thousand CPUs.
const MAX_CLAIM_BYTES: u64 = 32 << 10;
/// Maximum number of files that are looked at.
const MAX_FILES: usize = 10_000;
/// Maximum number of claims of one owner.
const MAX_CLAIMS_OF_OWNER: usize = 512;
/// Everybody may add files, and remove only their own.
const SHARED: Mode = Mode::from_raw_mode(0o1777);
const READABLE: Mode = Mode::from_raw_mode(0o644);

/// The directory of a machine, for the jobs of one dispatcher.
#[derive(Debug)]
pub struct MachineClaims {
    path: PathBuf,
    dir: OwnedFd,
    /// Identifies the dispatcher: beginning of the names of its files.
    instance: String,
    /// Held while the jobs of this dispatcher and their files are compared.
    writing: Mutex<()>,
    /// Claims that were read, by the names of their files.
    known: Mutex<BTreeMap<String, (Version, Option<Claim>)>>,
    /// Whether a failure was logged.
    has_failed: AtomicBool,
}

/// Tells whether a file is the one that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    modified: (i64, u64),
    owner: u32,
}

/// What a living job of another dispatcher holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldByOther {
    pub reservation: Reservation,
    /// User id of its dispatcher.
    pub owner: u32,
}

/// What the first job of a dispatcher waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    pub cpus: u64,
    pub ram: u64,
    pub cuda: u64,
    pub rocm: u64,
    /// Milliseconds since the machine was started.
    pub since: u64,
}

/// Content of the file with a want.
#[derive(Debug, Serialize, Deserialize)]
struct WantFile {
    process: ProcessIdentity,
    want: Want,
}

/// Content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    process: ProcessIdentity,
    reservation: Reservation,
}

impl MachineClaims {
    /// Creates the directory if needed.
    pub fn open(path: &Path, instance: &str) -> io::Result<Self> {
        let created = match rustix::fs::mkdir(path, SHARED) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        // Only one's own directory: another name may have been put in its place.
        if created && rustix::fs::fstat(&dir)?.st_uid == rustix::process::geteuid().as_raw() {
            rustix::fs::fchmod(&dir, SHARED)?;
        }
        Ok(Self {
            path: path.to_owned(),
            dir,
            instance: instance.to_owned(),
            writing: Mutex::new(()),
            known: Mutex::default(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// To be held from a change of this dispatcher's jobs to that of their claims.
    pub fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }

    /// Waits until no other dispatcher is about to add a claim. None will until the file is closed.
    pub fn lock(&self) -> Option<File> {
        let locked = self.open_lock().and_then(|file| {
            lock::acquire_within(LOCK_TIMEOUT, || file.try_lock()).map(|got| got.then_some(file))
        });
        match locked {
            Ok(Some(file)) => Some(file),
            Ok(None) => {
                self.failed("is locked by a process that does not let go", None);
                None
            }
            Err(error) => {
                self.failed("cannot be locked", Some(&error));
                None
            }
        }
    }

    /// Another user's file cannot be opened with O_CREAT in such a directory.
    fn open_lock(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&self.dir, LOCK_FILE, flags, READABLE);
        let opened = match open() {
            Err(Errno::NOENT) => {
                let create = flags | OFlags::CREATE | OFlags::EXCL;
                match rustix::fs::openat(&self.dir, LOCK_FILE, create, READABLE) {
                    Ok(file) => {
                        rustix::fs::fchmod(&file, READABLE)?;
                        Ok(file)
                    }
                    Err(Errno::EXIST) => open(),
                    Err(error) => Err(error),
                }
            }
            opened => opened,
        };
        Ok(opened?.into())
    }

    /// What all living jobs of other dispatchers hold.
    pub fn others(&self) -> Vec<HeldByOther> {
        let failed = |error: &io::Error| self.failed("cannot be read", Some(error));
        let names = self.names().inspect_err(failed).unwrap_or_default();
        let mut known = self.known.lock();
        let mut still_known = BTreeMap::new();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        let mut held = Vec::new();
        for name in names {
            if self.own_container(&name).is_some() {
                continue;
            }
            let Some(version) = self.version(&name) else {
                continue;
            };
            let count = counts.entry(version.owner).or_default();
            *count += 1;
            if *count > MAX_CLAIMS_OF_OWNER {
                continue;
            }
            let claim = match known.remove(&name) {
                Some((read, claim)) if read == version => claim,
                _ => self.open_file(&name).and_then(|(file, _)| parse(file)),
            };
            if let Some(claim) = &claim
                && is_alive(&claim.process, version.owner)
            {
                held.push(HeldByOther {
                    reservation: claim.reservation.clone(),
                    owner: version.owner,
                });
            }
            still_known.insert(name, (version, claim));
        }
        *known = still_known;
        held
    }

    /// None if it is no file.
    fn version(&self, name: &str) -> Option<Version> {
        let stat = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then_some(Version {
            inode: stat.st_ino,
            modified: (stat.st_mtime, stat.st_mtime_nsec as u64),
            owner: stat.st_uid,
        })
    }

    /// What other dispatchers want, as far as they said it lately.
    pub fn wants_of_others(&self) -> Vec<Want> {
        let names = self.file_names().unwrap_or_default();
        let own = format!("{}{WANT_SUFFIX}", self.instance);
        let theirs = names
            .iter()
            .filter(|name| name.ends_with(WANT_SUFFIX) && **name != own);
        let lately = theirs.filter_map(|name| {
            let (file, facts) = self.open_file(name)?;
            let age = facts.modified().ok()?.elapsed().ok()?;
            let file: WantFile = (age < WANT_TTL).then(|| parse(file))??;
            is_alive(&file.process, facts.uid()).then_some(file.want)
        });
        lately.collect()
    }

    /// Says what the first job waits for, or that none waits for others. To be repeated within
    /// [`WANT_TTL`].
    pub fn set_want(&self, want: Option<&Want>) {
        let name = format!("{}{WANT_SUFFIX}", self.instance);
        match want.cloned() {
            None => self.remove(&name),
            Some(want) => self.say(&name, std::process::id(), |process| WantFile {
                process,
                want,
            }),
        }
    }

    /// Says that the job holds this while the process lives.
    pub fn publish(&self, container: &ContainerUuid, reservation: &Reservation, pid: u32) {
        self.say(&self.name_of(container), pid, |process| Claim {
            process,
            reservation: reservation.clone(),
        });
    }

    /// Writes what counts while the process lives.
    fn say<T: Serialize>(&self, name: &str, pid: u32, content: impl FnOnce(ProcessIdentity) -> T) {
        let process = ProcessIdentity::of(pid);
        if let Err(error) = process.and_then(|process| self.write(name, &content(process))) {
            self.failed("cannot be written to", Some(&error));
        }
    }

    fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
    }

    /// Removes the claims of all jobs of this dispatcher but these, and adds what is missing.
    pub fn keep_only(&self, jobs: &BTreeMap<ContainerUuid, (Reservation, u32)>) {
        let mut there = BTreeSet::new();
        for name in self.names().unwrap_or_default() {
            let Some(container) = self.own_container(&name) else {
                continue;
            };
            match jobs.keys().find(|job| job.as_str() == container) {
                Some(job) => {
                    let pid = self.read(&name).map(|claim| claim.process.pid);
                    if pid == jobs.get(job).map(|(_, pid)| *pid) {
                        there.insert(job.clone());
                    }
                }
                None => self.remove(&name),
            }
        }
        for (container, (reservation, pid)) in jobs {
            if !there.contains(container) {
                self.publish(container, reservation, *pid);
            }
        }
    }

    /// The file with the claim of a job.
    pub fn path_of(&self, container: &ContainerUuid) -> PathBuf {
        self.path.join(self.name_of(container))
    }

    fn name_of(&self, container: &ContainerUuid) -> String {
        format!("{}.{container}", self.instance)
    }

    /// The container, if this dispatcher wrote the file.
    fn own_container<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&self.instance)?.strip_prefix('.')
    }

    /// The names of claims.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = self.file_names()?;
        names.retain(|name| !name.ends_with(WANT_SUFFIX));
        Ok(names)
    }

    fn file_names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            let name = CStr::to_str(entry.file_name()).unwrap_or_default();
            if !name.is_empty() && !name.starts_with('.') && name != LOCK_FILE {
                names.push(name.to_owned());
            }
            if names.len() == MAX_FILES {
                break;
            }
        }
        Ok(names)
    }

    /// The claim of a process that lives.
    fn read(&self, name: &str) -> Option<Claim> {
        let (file, facts) = self.open_file(name)?;
        let claim: Claim = parse(file)?;
        is_alive(&claim.process, facts.uid()).then_some(claim)
    }

    fn open_file(&self, name: &str) -> Option<(File, Metadata)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.dir, name, flags, Mode::empty()).ok()?);
        let facts = file.metadata().ok()?;
        facts.is_file().then_some((file, facts))
    }

    fn write(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let draft = format!(".{name}");
        self.remove(&draft);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.dir, &draft, flags, READABLE)?);
        rustix::fs::fchmod(&file, READABLE)?;
        file.write_all(&serde_json::to_vec(content)?)?;
        Ok(rustix::fs::renameat(&self.dir, &draft, &self.dir, name)?)
    }

    /// Logs the first failure: the machine is shared less well, and jobs run.
    fn failed(&self, what: &str, error: Option<&io::Error>) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            let path = self.path.display();
            let error = error.map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%path, error, "the directory in which dispatchers of this machine share its resources {what}");
        }
    }
}

fn parse<T: DeserializeOwned>(file: File) -> Option<T> {
    let mut text = Vec::new();
    file.take(MAX_CLAIM_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether the process lives and was started by this user.
fn is_alive(process: &ProcessIdentity, owner: u32) -> bool {
    let is_same = host_state::live_start_time(process.pid) == Some(process.start_time);
    let is_of_this_boot = || host_state::boot_id().is_ok_and(|boot| boot == process.boot_id);
    is_same && host_state::real_uid(process.pid) == Some(owner) && is_of_this_boot()
}

#[cfg(test)]
mod tests;

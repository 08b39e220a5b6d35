//! Everything before Running: inputs and image fetched, left-overs removed, the container created.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arvados_client::records::Mount;

use super::Means;
use super::claim::Claim;
use super::failure::Failure;
use super::image::ImageFile;
use super::settings::Settings;
use super::spec;
use crate::cache::{self, BlockCache};
use crate::engine::gpu::GpuAccess;
use crate::engine::{Container, ContainerSpec, Engine, Stdio};
use crate::image::Image;
use crate::job_dir::{JobDir, make_private};
use crate::logs::{Journal, LogDir, Pump, STDERR, STDOUT};
use crate::mounts::arv_mount::ArvMount;
use crate::mounts::{self, Progress, Sources, Staged};
use crate::status::Status;

/// A directory of this attempt alone, gone with it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// What an earlier attempt at the same container left here is removed; nothing of it runs any more.
    pub fn create(settings: &Settings, dir: &JobDir) -> io::Result<Self> {
        let Some(parent) = &settings.scratch else {
            let path = dir.scratch();
            remove(&path)?;
            make_private(&path)?;
            return Ok(Self { path });
        };
        make_private(parent)?;
        let parent = parent.canonicalize()?;
        let prefix = format!("crunch-run.{}.", settings.uuid);
        for entry in fs::read_dir(&parent)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                remove(&entry.path())?;
            }
        }
        let path = parent.join(format!("{prefix}{:08x}", fastrand::u32(..)));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn remove(&self) -> io::Result<()> {
        remove(&self.path)
    }
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// What was fetched.
#[derive(Debug)]
pub struct Fetched {
    pub staged: Staged,
    pub image: Image,
}

/// Inputs and image, at the same time.
pub async fn fetch(
    means: Means<'_>,
    settings: &Settings,
    secret: BTreeMap<String, Mount>,
    image: &ImageFile,
    status: &Status,
) -> Result<Fetched, Failure> {
    let Means {
        claim,
        engine,
        scratch,
        tree,
        ..
    } = means;
    let plan = mounts::plan(&claim.record, &secret, claim.record.runtime_constraints.api)
        .map_err(|e| Failure::of_mounts(&e))?;
    let files = scratch.path().join("files");
    make_private(&files).map_err(|e| on_this_node(&files, &e))?;
    let progress = |progress: Progress| {
        status.activity(Some(transfer("fetching inputs", progress)));
    };
    let tree = tree.map(ArvMount::by_id);
    let blocks = BlockCache::new(
        claim.container_keep.clone(),
        &settings.cache,
        settings.cache_limits,
        settings.block_dirs.clone(),
    );
    let sources = Sources {
        client: &claim.container_client,
        blocks: &blocks,
        scratch: &files,
        tree: tree.as_deref(),
        progress: &progress,
    };
    sweep_aside(settings);
    let (staged, image) = tokio::join!(
        mounts::stage(plan, sources),
        image.prepare(engine, &claim.container_keep, status),
    );
    Ok(Fetched {
        staged: staged.map_err(|e| Failure::of_mounts(&e))?,
        image: image.map_err(|e| Failure::of_engine("the image cannot be made ready", &e))?,
    })
}

/// Makes room in the node's cache while inputs arrive; nobody waits for it.
fn sweep_aside(settings: &Settings) {
    let (cache, limits) = (settings.cache.clone(), settings.cache_limits);
    tokio::task::spawn_blocking(move || match cache::sweep_now_and_then(&cache, limits) {
        Ok(Some(swept)) if swept.removed > 0 => {
            tracing::info!(
                removed = swept.removed,
                bytes = swept.freed,
                "swept the node's cache"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the node's cache cannot be swept"),
    });
}

/// `fetching inputs 12/480 MiB`.
pub fn transfer(what: &str, progress: Progress) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    format!("{what} {}/{} MiB", mib(progress.done), mib(progress.total))
}

/// Those parts of the container that are read while it runs.
#[derive(Debug, Default)]
pub struct Pumps {
    pub stdout: Option<Pump>,
    pub stderr: Option<Pump>,
}

/// Created, not started.
pub struct Created {
    pub container: Arc<dyn Container>,
    pub pumps: Pumps,
    /// What the engine does not limit here, a sentence each.
    pub unenforced: Vec<String>,
}

/// What a container is made from.
pub struct Creation<'a> {
    pub claim: &'a Claim,
    pub settings: &'a Settings,
    pub engine: &'a dyn Engine,
    pub scratch: &'a Scratch,
    pub fetched: &'a Fetched,
    pub gpus: Option<GpuAccess>,
    pub logs: &'a LogDir,
    pub status: &'a Status,
    pub journal: &'a Journal,
}

pub async fn create(from: Creation<'_>) -> Result<Created, Failure> {
    let Creation {
        claim,
        settings,
        engine,
        scratch,
        fetched,
        ..
    } = from;
    let record = &claim.record;
    let limits = spec::limits(record, settings);
    let remarks = from.gpus.iter().flat_map(|gpus| gpus.remarks.clone());
    let (stdio, pumps) = stdio(&fetched.staged, from.logs, settings.log_limit)?;
    let spec = ContainerSpec {
        name: record.uuid.to_string(),
        command: record.command.clone(),
        cwd: Some(record.cwd.clone()),
        environment: spec::environment(record, claim.container_client.endpoint()),
        binds: fetched.staged.binds.clone(),
        network: spec::network(record, settings),
        limits: limits.clone(),
        gpus: from.gpus.clone(),
        scratch: scratch.path().to_owned(),
        stdio,
    };
    // Both may have to ask a service that takes its time.
    let (unenforceable, container) = tokio::join!(
        engine.unenforceable(&limits, from.gpus.as_ref()),
        engine.create(&fetched.image, spec)
    );
    for sentence in remarks {
        from.journal.say(format!("Warning: {sentence}"));
        from.status.warn(sentence);
    }
    for missing in &unenforceable {
        let sentence = missing.sentence.clone();
        if missing.is_covered {
            from.journal.say(format!("Note: {sentence}"));
            continue;
        }
        from.journal.say(format!("Warning: {sentence}"));
        from.status.warn_of_node(sentence);
    }
    let container =
        container.map_err(|e| Failure::of_engine("the container cannot be created", &e))?;
    let unenforced = unenforceable.into_iter().map(|all| all.sentence).collect();
    Ok(Created {
        container,
        pumps,
        unenforced,
    })
}

/// From and to files where the record asks for that, and otherwise from nothing and to the log.
fn stdio(staged: &Staged, logs: &LogDir, limit: u64) -> Result<(Stdio, Pumps), Failure> {
    let stdin = match &staged.stdin {
        Some(path) => File::open(path).map_err(|e| on_this_node(path, &e))?,
        None => File::open("/dev/null").map_err(|e| on_this_node(Path::new("/dev/null"), &e))?,
    };
    let output = |file: &Option<PathBuf>, log: &str| -> Result<(OwnedFd, Option<Pump>), Failure> {
        if let Some(path) = file {
            // Both may name the same file, so each only ever adds to its end. It may be one of a collection that the
            // output begins with: what that had is replaced.
            let file = fs::OpenOptions::new()
                .append(true)
                .custom_flags(libc::O_NOFOLLOW)
                .open(path)
                .and_then(|file| file.set_len(0).map(|()| file))
                .map_err(|e| on_this_node(path, &e))?;
            return Ok((file.into(), None));
        }
        let (writing, pump) = logs
            .open(log)
            .and_then(|file| Pump::start(file, limit))
            .map_err(|e| on_this_node(&logs.file(log), &e))?;
        Ok((writing, Some(pump)))
    };
    let (stdout, stdout_pump) = output(&staged.stdout, STDOUT)?;
    let (stderr, stderr_pump) = output(&staged.stderr, STDERR)?;
    Ok((
        Stdio {
            stdin: stdin.into(),
            stdout,
            stderr,
        },
        Pumps {
            stdout: stdout_pump,
            stderr: stderr_pump,
        },
    ))
}

pub fn on_this_node(path: &Path, error: &io::Error) -> Failure {
    Failure::NeverRan(format!(
        "{} cannot be used on this node: {error}",
        path.display()
    ))
}

//! Prepares a container: fetches inputs and image, then creates the container.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arvados_client::records::Mount;
use host_state::file::create_private_dir;
use host_state::trash;

use super::claim::Claim;
use super::context::PhaseContext;
use super::failure::Failure;
use super::image::ImageFile;
use super::scratch_dir::ScratchDir;
use super::settings::Settings;
use super::spec;
use crate::attempt::runtime_status::Status;
use crate::inputs::arv_mount::ArvMount;
use crate::inputs::{self, Progress, Sources, Staged};
use crate::logs::{LogDir, Pump, RunLog, STDERR, STDOUT};
use container_engine::gpu::GpuAccess;
use container_engine::{
    Container, ContainerSpec, ContainerUsers, Engine, LimitCover, LimitKind, Stdio,
};
use node_cache::BlockCache;
use node_cache::image::Image;

/// Fetched inputs and image.
#[derive(Debug)]
pub struct FetchedInputs {
    pub staged: Staged,
    pub image: Image,
}

/// Fetches inputs and image at the same time.
pub async fn fetch(
    context: PhaseContext<'_>,
    settings: &Settings,
    secret: BTreeMap<String, Mount>,
    image: &ImageFile,
    status: &Status,
) -> Result<FetchedInputs, Failure> {
    let PhaseContext {
        claim,
        engine,
        scratch,
        tree,
        ..
    } = context;
    let plan = inputs::plan(&claim.record, &secret, claim.record.runtime_constraints.api)
        .map_err(|e| Failure::of_mounts(&e))?;
    let files = scratch.path().join("files");
    create_private_dir(&files).map_err(|e| node_failure(&files, &e))?;
    let progress = |progress: Progress| {
        status.set_activity(Some(format_progress("fetching inputs", progress)));
    };
    let tree = tree.map(ArvMount::by_id);
    let blocks = BlockCache::new(
        claim.container_keep.clone(),
        &settings.cache,
        settings.node.cache_limits.limits(),
        settings.node.block_dir.clone(),
    );
    let sources = Sources {
        client: &claim.container_client,
        blocks: &blocks,
        scratch: &files,
        tree: tree.as_deref(),
        progress: &progress,
    };
    collect_cache_garbage(settings);
    let (staged, image) = tokio::join!(
        inputs::stage(plan, sources),
        image.prepare(engine, &claim.container_keep, status),
    );
    Ok(FetchedInputs {
        staged: staged.map_err(|e| Failure::of_mounts(&e))?,
        image: image.map_err(|e| Failure::of_engine("the image cannot be made ready", &e))?,
    })
}

/// Collects garbage in the node's cache in the background.
fn collect_cache_garbage(settings: &Settings) {
    let (cache, limits) = (settings.cache.clone(), settings.node.cache_limits.limits());
    let collect = move || match node_cache::collect_if_due(&cache, limits) {
        Ok(Some(swept)) if swept.removed > 0 => {
            tracing::info!(
                removed = swept.removed,
                bytes = swept.freed,
                "collected garbage in the node's cache"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "could not collect garbage in the node's cache"),
    };
    // Not on a thread of the runtime, which would keep the low priority.
    std::thread::spawn(move || {
        trash::lower_priority();
        collect();
    });
}

/// `fetching inputs 12/480 MiB`.
pub fn format_progress(what: &str, progress: Progress) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    format!("{what} {}/{} MiB", mib(progress.done), mib(progress.total))
}

/// Pumps of the container's output streams.
#[derive(Debug, Default)]
pub struct Pumps {
    pub stdout: Option<Pump>,
    pub stderr: Option<Pump>,
}

/// A created container that is not started.
pub struct CreatedContainer {
    pub container: Arc<dyn Container>,
    pub pumps: Pumps,
    /// Limits that the engine does not enforce, a sentence each.
    pub unenforced: Vec<String>,
    /// Whether nothing limits memory, neither the engine nor the control group of the job.
    pub watches_memory: bool,
}

/// Input of [`create`].
pub struct CreateRequest<'a> {
    pub claim: &'a Claim,
    pub settings: &'a Settings,
    pub engine: &'a dyn Engine,
    pub scratch: &'a ScratchDir,
    pub fetched: &'a FetchedInputs,
    pub gpus: Option<GpuAccess>,
    pub logs: &'a LogDir,
    pub status: &'a Status,
    pub run_log: &'a RunLog,
}

pub async fn create(from: CreateRequest<'_>) -> Result<CreatedContainer, Failure> {
    let CreateRequest {
        claim,
        settings,
        engine,
        scratch,
        fetched,
        ..
    } = from;
    let record = &claim.record;
    let limits = spec::limits(record, settings);
    let remarks = from.gpus.iter().flat_map(|gpus| gpus.warnings.clone());
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
        confinement: settings.confinement.clone(),
        scratch: scratch.path().to_owned(),
        stdio,
    };
    // Both may call a slow service.
    let (unenforced_limits, container) = tokio::join!(
        engine.unenforced_limits(&limits, from.gpus.as_ref()),
        engine.create(&fetched.image, spec)
    );
    for sentence in remarks {
        from.run_log.write(format!("Warning: {sentence}"));
        from.status.warn(sentence);
    }
    for missing in &unenforced_limits {
        // `crunch-run check` warns about it. A person who runs a container cannot change it.
        let word = match missing.cover {
            LimitCover::Nothing => "Warning",
            _ => "Note",
        };
        from.run_log.write(format!("{word}: {}", missing.sentence));
    }
    let container =
        container.map_err(|e| Failure::of_engine("the container cannot be created", &e))?;
    match container.users() {
        Some(ContainerUsers::Own { root }) => {
            let sentence = format!("The container's root is user {root} of this node.");
            from.run_log.write(sentence);
        }
        Some(ContainerUsers::OfNode {
            reason: Some(reason),
        }) => {
            let sentence = format!("Note: the container's users are those of this node: {reason}");
            from.run_log.write(sentence);
        }
        Some(ContainerUsers::OfNode { reason: None }) | None => {}
    }
    let mut missing = unenforced_limits.iter().flat_map(|one| &one.missing);
    let watches_memory = missing.any(|kind| *kind == LimitKind::Memory);
    let unenforced = unenforced_limits
        .into_iter()
        .map(|all| all.sentence)
        .collect();
    Ok(CreatedContainer {
        container,
        pumps,
        unenforced,
        watches_memory,
    })
}

/// Connects stdin, stdout and stderr to files of the record, or else to /dev/null and the log.
fn stdio(staged: &Staged, logs: &LogDir, limit: u64) -> Result<(Stdio, Pumps), Failure> {
    let stdin = match &staged.stdin {
        Some(path) => File::open(path).map_err(|e| node_failure(path, &e))?,
        None => File::open("/dev/null").map_err(|e| node_failure(Path::new("/dev/null"), &e))?,
    };
    let output = |file: &Option<PathBuf>, log: &str| -> Result<(OwnedFd, Option<Pump>), Failure> {
        if let Some(path) = file {
            // Both streams may name the same file, so both append. A file of a writable collection
            // is truncated first.
            let file = fs::OpenOptions::new()
                .append(true)
                .custom_flags(libc::O_NOFOLLOW)
                .open(path)
                .and_then(|file| file.set_len(0).map(|()| file))
                .map_err(|e| node_failure(path, &e))?;
            return Ok((file.into(), None));
        }
        let (writing, pump) = logs
            .open(log)
            .and_then(|file| Pump::start(file, limit))
            .map_err(|e| node_failure(&logs.file(log), &e))?;
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

pub fn node_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::NeverRan(format!(
        "{} cannot be used on this node: {error}",
        path.display()
    ))
}

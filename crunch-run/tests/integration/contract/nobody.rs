//! crunch-run as an ordinary user, for whom only its own files are readable.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::run_lab::{Job, World};

pub const NOBODY: u32 = 65534;

/// Uses a cache of its own, because root's is not readable for others.
pub fn program(world: &World, job: &Job) -> Command {
    let open = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(world.dir());
    open(job.dir.parent().unwrap());
    give(&job.dir);
    give(&job.dir.join("token"));
    let cache = world.dir().join("cache");
    fs::create_dir_all(&cache).unwrap();
    give(&cache);
    // Others of this world may be reading theirs.
    let certificate = format!("certificate-{}.pem", job.uuid);
    let certificate = world.dir().join(certificate);
    fs::copy(&world.environment()["SSL_CERT_FILE"], &certificate).unwrap();
    open(&certificate);
    let mut program = world.program_with_cache(job, &cache);
    program
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .env("SSL_CERT_FILE", certificate);
    program
}

pub fn give(path: &Path) {
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

/// Notes of its containers; there are no control groups.
pub fn left_overs(uuid: &arvados_client::ContainerUuid) -> Vec<PathBuf> {
    let prefix = format!("crunch-run-{uuid}-");
    let notes = fs::read_dir(format!("/tmp/crunch-run-{NOBODY}"));
    notes
        .into_iter()
        .flatten()
        .flatten()
        .filter(|note| note.file_name().to_string_lossy().starts_with(&prefix))
        .map(|note| note.path())
        .collect()
}

//! Moves undelivered results out of a directory that is removed with the job. HTCondor removes the
//! job's sandbox, which contains TMPDIR, as soon as crunch-run ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use host_state::file::create_private;
use host_state::private_dir;

use crate::node::job_dir::JobDir;
use crate::undelivered::record::UndeliveredRun;

/// Variable with the job's sandbox (HTCondor manual, "Environment and services for a running job").
const SANDBOX_VARIABLE: &str = "_CONDOR_SCRATCH_DIR";
const CERTIFICATE_VARIABLE: &str = "SSL_CERT_FILE";

/// Directory to move results to, if they cannot stay: the configured one, or a default one in
/// HTCondor's sandbox.
pub fn destination(
    dir: &Path,
    configured: Option<&Path>,
    env: impl Fn(&str) -> Option<String>,
) -> Option<PathBuf> {
    if let Some(configured) = configured {
        return Some(configured.to_owned());
    }
    let sandbox = fs::canonicalize(env(SANDBOX_VARIABLE)?).ok()?;
    let user = rustix::process::geteuid().as_raw();
    let path = format!("/var/tmp/crunch-run-undelivered-{user}");
    dir.starts_with(sandbox).then(|| {
        let path = PathBuf::from(path);
        // Whoever uses it says why it cannot be.
        private_dir::create_beside(&path).unwrap_or(path)
    })
}

/// Whether `path` is removed with the job as well. HTCondor mounts parts of the sandbox over /tmp
/// and /var/tmp (MOUNT_UNDER_SCRATCH). `mounts` is /proc/self/mountinfo.
fn is_removed_with_job(path: &Path, sandbox: &Path, mounts: &str) -> bool {
    let over = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        path.starts_with(point).then_some((point.len(), root))
    });
    let innermost = over.max_by_key(|(length, _)| *length);
    innermost.is_some_and(|(_, root)| {
        Path::new(root)
            .iter()
            .any(|part| Some(part) == sandbox.file_name())
    })
}

/// Moves the job directory, with the token and certificate for the delivery. Returns the new path.
pub fn relocate(
    dir: &JobDir,
    destination: &Path,
    token_file: Option<&Path>,
) -> anyhow::Result<PathBuf> {
    // The name is predictable for every user of this node.
    private_dir::create(destination)?;
    if let Some(sandbox) = std::env::var_os(SANDBOX_VARIABLE).filter(|value| !value.is_empty()) {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(
            !is_removed_with_job(&destination.canonicalize()?, Path::new(&sandbox), &mounts),
            "{} is removed with the job as well (MOUNT_UNDER_SCRATCH): name another directory with --undelivered-dir",
            destination.display()
        );
    }
    let name = dir.path().file_name().context("it has no name")?;
    let new = destination.canonicalize()?.join(name);
    if let Some(file) = token_file.filter(|_| !dir.token().exists()) {
        copy_private(file, &dir.token()).context("the token cannot be copied")?;
    }
    let mut undelivered_run = UndeliveredRun::read(dir)?.context("undelivered.json is missing")?;
    // A missing certificate does not prevent the move.
    if let Some(certificate) = undelivered_run.environment.get_mut(CERTIFICATE_VARIABLE)
        && copy_private(Path::new(certificate), &dir.path().join("ca.pem")).is_ok()
    {
        *certificate = new.join("ca.pem").to_string_lossy().into_owned();
    }
    undelivered_run
        .write(dir)
        .context("undelivered.json cannot be written")?;
    if fs::rename(dir.path(), &new).is_err() {
        // On another file system, `mv` keeps owners and times.
        let moved = Command::new("mv").arg(dir.path()).arg(&new).output();
        let moved = moved.context("mv cannot be run")?;
        let stderr = String::from_utf8_lossy(&moved.stderr);
        if !moved.status.success() {
            // A partial copy is useless and takes space.
            let _ = fs::remove_dir_all(&new);
            bail!("mv fails: {}", stderr.trim());
        }
    }
    Ok(new)
}

fn copy_private(from: &Path, to: &Path) -> std::io::Result<()> {
    std::io::copy(&mut fs::File::open(from)?, &mut create_private(to)?).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_with_the_job_is_taken_elsewhere() {
        let sandbox = tempfile::tempdir().unwrap();
        let sandbox = sandbox.path().canonicalize().unwrap();
        let env = |name: &str| {
            let value = sandbox.to_str().unwrap().to_owned();
            (name == SANDBOX_VARIABLE).then_some(value)
        };
        let user = rustix::process::geteuid().as_raw();
        let usual = PathBuf::from(format!("/var/tmp/crunch-run-undelivered-{user}"));
        assert_eq!(destination(&sandbox.join("a"), None, env), Some(usual));
        assert_eq!(destination(Path::new("/elsewhere"), None, env), None);
        assert_eq!(destination(&sandbox.join("a"), None, |_| None), None);
        let configured = Some(Path::new("/told"));
        assert_eq!(
            destination(Path::new("/a"), configured, |_| None),
            configured.map(Into::into)
        );
    }

    #[test]
    fn a_place_under_the_job_s_own_mount_is_known() {
        let sandbox = Path::new("/var/lib/condor/execute/dir_77");
        let plain = "22 1 254:0 / / rw - ext4 /dev/vda rw\n";
        let bound = format!(
            "{plain}90 22 254:0 /var/lib/condor/execute/dir_77/var/tmp /var/tmp rw - ext4 /dev/vda rw\n"
        );
        for (path, mounts, expected) in [
            ("/var/tmp/x", plain, false),
            ("/var/tmp/x", &bound, true),
            ("/var/tmpx", &bound, false),
            ("/srv/x", &bound, false),
        ] {
            assert_eq!(
                is_removed_with_job(Path::new(path), sandbox, mounts),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn a_place_that_others_may_enter_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let destination = tempfile::tempdir().unwrap();
        fs::set_permissions(destination.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let dir = JobDir::open(dir.path()).unwrap();
        let error = relocate(&dir, destination.path(), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("can be written to by others"), "{error}");
    }
}

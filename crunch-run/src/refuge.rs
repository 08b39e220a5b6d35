//! Where undelivered results go when their directory ends with the job: HTCondor removes the job's own directory, in
//! which it put TMPDIR, as soon as crunch-run has ended.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::job_dir::{JobDir, make_private};
use crate::run::Left;

/// The directory that HTCondor made for the job (HTCondor manual, "Environment and services for a running job").
const SANDBOX: &str = "_CONDOR_SCRATCH_DIR";
const CERTIFICATE: &str = "SSL_CERT_FILE";

/// Where to take them, if they cannot stay: where the admin says, or because the job directory is HTCondor's.
pub fn place(
    dir: &Path,
    told: Option<&Path>,
    env: impl Fn(&str) -> Option<String>,
) -> Option<PathBuf> {
    if let Some(told) = told {
        return Some(told.to_owned());
    }
    let sandbox = fs::canonicalize(env(SANDBOX)?).ok()?;
    let user = rustix::process::geteuid().as_raw();
    let place = format!("/var/tmp/crunch-run-undelivered-{user}");
    dir.starts_with(sandbox).then(|| place.into())
}

/// Whether what is below `path` ends with the job, too: HTCondor usually mounts a part of its directory for the job
/// over /tmp and /var/tmp (MOUNT_UNDER_SCRATCH). `mounts` is /proc/self/mountinfo.
fn is_jobs_own(path: &Path, sandbox: &Path, mounts: &str) -> bool {
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

/// Takes them there, with the token and the certificate to deliver them with; where they are now.
pub fn take(dir: &JobDir, place: &Path, token_file: Option<&Path>) -> anyhow::Result<PathBuf> {
    make_private(place).with_context(|| format!("{} cannot be made", place.display()))?;
    let facts = fs::symlink_metadata(place)?;
    // Its name is known to everybody on this node.
    ensure!(
        facts.is_dir()
            && facts.uid() == rustix::process::geteuid().as_raw()
            && facts.mode() & 0o077 == 0,
        "{} is not a directory of this user alone",
        place.display()
    );
    if let Some(sandbox) = std::env::var_os(SANDBOX).filter(|value| !value.is_empty()) {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(
            !is_jobs_own(&place.canonicalize()?, Path::new(&sandbox), &mounts),
            "{} ends with the job too (MOUNT_UNDER_SCRATCH): name another place with --undelivered-dir",
            place.display()
        );
    }
    let name = dir.path().file_name().context("it has no name")?;
    let new = place.canonicalize()?.join(name);
    if let Some(file) = token_file.filter(|_| !dir.token().exists()) {
        copy_private(file, &dir.token()).context("the token cannot be copied")?;
    }
    let mut left = Left::read(dir)?.context("there is no note of what is left")?;
    // Without it the results are worth no less.
    if let Some(certificate) = left.environment.get_mut(CERTIFICATE)
        && copy_private(Path::new(certificate), &dir.path().join("ca.pem")).is_ok()
    {
        *certificate = new.join("ca.pem").to_string_lossy().into_owned();
    }
    left.write(dir).context("the note cannot be written")?;
    if fs::rename(dir.path(), &new).is_err() {
        // On another file system: with owners and times, as the container left them.
        let moved = Command::new("mv").arg(dir.path()).arg(&new).output();
        let moved = moved.context("mv cannot be run")?;
        let said = String::from_utf8_lossy(&moved.stderr);
        if !moved.status.success() {
            // Half of them are none, and take the room of others.
            let _ = fs::remove_dir_all(&new);
            bail!("mv fails: {}", said.trim());
        }
    }
    Ok(new)
}

fn copy_private(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut from = fs::File::open(from)?;
    let mut to = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(to)?;
    std::io::copy(&mut from, &mut to)?;
    Ok(())
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
            (name == SANDBOX).then_some(value)
        };
        let user = rustix::process::geteuid().as_raw();
        let usual = PathBuf::from(format!("/var/tmp/crunch-run-undelivered-{user}"));
        assert_eq!(place(&sandbox.join("a"), None, env), Some(usual));
        assert_eq!(place(Path::new("/elsewhere"), None, env), None);
        assert_eq!(place(&sandbox.join("a"), None, |_| None), None);
        let told = Some(Path::new("/told"));
        assert_eq!(place(Path::new("/a"), told, |_| None), told.map(Into::into));
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
                is_jobs_own(Path::new(path), sandbox, mounts),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn a_place_that_others_may_enter_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let dir = JobDir::given(dir.path()).unwrap();
        let error = take(&dir, place.path(), None).unwrap_err().to_string();
        assert!(error.contains("this user alone"), "{error}");
    }
}

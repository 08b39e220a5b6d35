//! Checks of the dispatcher's machine: its user, the scheduler's commands and the directory of
//! jobs. Output: findings.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::Finding;
use crate::scheduler::command::Command;
use crate::scheduler::owner_map::{ArgumentCheck, OwnerMap};
use crate::scheduler::submit_host;
use crate::service::Flags;
use crate::service::state_dir::{StateDir, StateDirError};

/// Timeout of the check of a directory.
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks of flags, configuration file and user.
pub fn set_up(flags: &Flags) -> Vec<Finding> {
    let mut findings = Vec::new();
    for warning in flags.config.iter().flat_map(|config| &config.warnings) {
        let mend = "correct it in the configuration file, or remove it";
        findings.push(Finding::warn("configuration", warning, mend));
    }
    for config in flags.config.iter() {
        let mend = format!("chmod o= {}", config.path.display());
        let exposed = config.exposed.iter();
        findings.extend(exposed.map(|why| Finding::warn("configuration", why, mend.clone())));
    }
    if rustix::process::geteuid().is_root() {
        let mend = "run the service as a user of its own, and this check too";
        findings.push(Finding::warn(
            "user",
            "this is root; use an ordinary user who may submit jobs",
            mend,
        ));
    }
    findings
}

/// Subject of findings about the owner map.
pub const OWNER_MAP: &str = "owner map";

/// What is wrong with the owner map, if it is given and cannot be used.
pub fn owner_map_fault(path: Option<&Path>, check: ArgumentCheck) -> Option<Finding> {
    let error = OwnerMap::open(path?, check).err()?;
    let mend = "correct the file before the service starts again: it keeps the earlier one only while it runs";
    Some(Finding::fail(OWNER_MAP, error.to_string(), mend))
}

/// Remedies for problems with a scheduler's commands.
#[derive(Debug, Clone, Copy)]
pub struct Remedies<'a> {
    /// Remedy for missing commands.
    pub install: &'a str,
    /// Remedy for commands that fail.
    pub configure: &'a str,
}

/// Checks that these commands exist and have one version. `argument` makes each print its version
/// on one line.
pub async fn commands(names: &[&str], argument: &str, mends: Remedies<'_>) -> Vec<Finding> {
    let mut versions = Vec::new();
    let mut findings = Vec::new();
    for name in names {
        match Command::new(name).args([argument]).run_checked().await {
            Ok(answer) => {
                let first = answer.stdout.trim().lines().next().unwrap_or_default();
                versions.push((name, first.to_owned()));
            }
            Err(error) => {
                let mend = match error.is_not_started() {
                    true => mends.install,
                    false => mends.configure,
                };
                findings.push(Finding::fail("commands", format!("{name}: {error}"), mend))
            }
        }
    }
    let Some((first, version)) = versions.first() else {
        return findings;
    };
    match versions.iter().find(|(_, other)| other != version) {
        None => {
            let names: Vec<&str> = versions.iter().map(|(name, _)| **name).collect();
            findings.push(Finding::ok(
                "commands",
                format!("{} of {version}", names.join(", ")),
            ));
        }
        Some((name, other)) => findings.push(Finding::warn(
            "commands",
            format!("{first} is of {version}, {name} of {other}"),
            "put the directory of one installation first in PATH",
        )),
    }
    findings
}

/// Checks the directory of the jobs, called `what`. Creates it if needed, as the service does.
pub async fn directory(what: &'static str, path: &Path) -> (Finding, Option<StateDir>) {
    let own = path.to_owned();
    let checking = tokio::task::spawn_blocking(move || try_directory(what, &own));
    match tokio::time::timeout(DIRECTORY_TIMEOUT, checking).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => (Finding::fail(what, error.to_string(), ""), None),
        Err(_) => {
            let seconds = DIRECTORY_TIMEOUT.as_secs();
            let finding = format!("{} has not answered for {seconds} s", path.display());
            let mend = "see that its file system is mounted and its server answers";
            (Finding::fail(what, finding, mend), None)
        }
    }
}

fn try_directory(what: &'static str, path: &Path) -> (Finding, Option<StateDir>) {
    let own = "make it for the service's user alone: install -d -m 700 -o USER DIR";
    let failed = |error: StateDirError| {
        let mend = match error {
            StateDirError::OwnedByOther { .. } => "run this check as the user of the service",
            StateDirError::InUse(_) | StateDirError::Unusable { .. } => own,
        };
        (Finding::fail(what, error.to_string(), mend), None)
    };
    // The directory may not exist before the first start. A running service holds its lock.
    if !path.exists()
        && let Err(error) = StateDir::acquire(path)
    {
        return failed(error);
    }
    let home = match StateDir::open_shared(path) {
        Ok(home) => home,
        Err(error) => return failed(error),
    };
    if let Err(error) = submit_host::try_directory(home.path(), &home.trial_name()) {
        let mend = submit_host::directory_remedy(&error).unwrap_or(own);
        let finding = format!("cannot write to {}: {error}", home.path().display());
        return (Finding::fail(what, finding, mend), None);
    }
    let shown = home.path().display();
    let metadata = home.path().metadata();
    let finding = match metadata.map(|m| m.permissions().mode() & 0o777) {
        Ok(mode) if mode & 0o077 != 0 => Finding::warn(
            what,
            format!(
                "{shown} is open to others (mode {mode:o}); each job's own directory in it is not"
            ),
            format!("chmod 700 {shown}"),
        ),
        _ => Finding::ok(what, format!("{shown} can be written to")),
    };
    (finding, Some(home))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::service::subcommands::check::Level;

    #[test]
    fn a_directory_is_for_its_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs");
        let (finding, home) = try_directory("jobs", &path);
        assert!(home.is_some());
        assert_eq!(finding.level, Level::Ok, "{finding:?}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let (finding, _) = try_directory("jobs", &path);
        assert!(finding.finding.contains("mode 755"), "{finding:?}");
        let (finding, home) = try_directory("jobs", Path::new("/proc/none"));
        assert!(home.is_none() && finding.level == Level::Fail);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
            let mend = try_directory("jobs", &path).0.remedy.unwrap();
            assert!(mend.starts_with("run this check as the user"), "{mend}");
        }
    }

    #[tokio::test]
    async fn commands_are_of_one_version() {
        let mends = Remedies {
            install: "install it",
            configure: "configure it",
        };
        let found = commands(&["true", "false-there-is-none"], "--version", mends).await;
        let levels: Vec<Level> = found.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Fail, Level::Ok], "{found:?}");
        assert_eq!(found[0].remedy.as_deref(), Some("install it"));
        let found = commands(&["false"], "--version", mends).await;
        assert_eq!(found[0].remedy.as_deref(), Some("configure it"));
        let found = commands(&["true", "cat"], "--version", mends).await;
        assert_eq!(found[0].level, Level::Warn, "{found:?}");
    }
}

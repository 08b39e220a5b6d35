//! A node that cannot run anything would fail one container after the other, fast. Its symptoms are known; whoever
//! looks after nodes is told by a hook of theirs, or by a marker file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::logs::Journal;

/// Words that come in this order, in any case, where the node is at fault.
const SYMPTOMS: [&[&str]; 4] = [
    &["cannot connect to the docker daemon"],
    &[
        "oci runtime error",
        "container init",
        "mounting",
        "to rootfs",
        "no such file or directory",
    ],
    &["grpc: the connection is unavailable"],
    &["no space left on device"],
];
/// A hook that does not end is not waited for.
const HOOK_PATIENCE: Duration = Duration::from_secs(60);

/// Whether an engine's error says that the node is broken.
pub fn is_symptom(error: &str) -> bool {
    let error = error.to_lowercase();
    SYMPTOMS.iter().any(|words| {
        let mut rest = error.as_str();
        words.iter().all(|word| match rest.split_once(word) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    })
}

/// How a broken node is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alarm {
    /// A program, with the reason as its argument.
    Hook(PathBuf),
    /// A file with the reason in it.
    Marker(PathBuf),
}

impl Alarm {
    /// Raises it; the log tells how that went. It fails nothing.
    pub async fn raise(&self, reason: &str, journal: &Journal) {
        journal.say(format!("This node seems to be broken: {reason}"));
        match self {
            Self::Hook(program) => hook(program, reason, journal).await,
            Self::Marker(path) => mark(path, reason, journal),
        }
    }
}

async fn hook(program: &Path, reason: &str, journal: &Journal) {
    let shown = program.display();
    journal.say(format!("Running the broken-node hook {shown}"));
    let ended = Command::new(program)
        .arg(reason)
        // Not its business.
        .env_remove("ARVADOS_API_TOKEN")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(HOOK_PATIENCE, ended).await {
        Ok(Ok(output)) => {
            for text in [output.stdout, output.stderr] {
                let text = String::from_utf8_lossy(&text);
                if !text.trim().is_empty() {
                    journal.say(text);
                }
            }
            if !output.status.success() {
                journal.say(format!("The hook failed: {}", output.status));
            }
        }
        Ok(Err(error)) => journal.say(format!("The hook {shown} cannot be run: {error}")),
        Err(_) => journal.say(format!(
            "The hook did not end within {} s and was killed",
            HOOK_PATIENCE.as_secs()
        )),
    }
}

fn mark(path: &Path, reason: &str, journal: &Journal) {
    let shown = path.display();
    journal.say(match fs::write(path, format!("{reason}\n")) {
        Ok(()) => format!(
            "Wrote {shown}, so that nodes like this can be found; remove it when the node is mended"
        ),
        Err(error) => format!("{shown} cannot be written: {error}"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use arvados_client::ContainerUuid;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn symptoms_of_a_broken_node() {
        for (error, expected) in [
            (
                "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
                true,
            ),
            (
                "oci runtime error: container_linux.go: process_linux.go:359: container init caused\n\
                 \"rootfs_linux.go:54: mounting \\\"/keep\\\" to rootfs \\\"/tmp/x\\\" caused: no such file or directory\"",
                true,
            ),
            ("grpc: the connection is unavailable", true),
            ("write /tmp/x: No space left on device (os error 28)", true),
            ("oci runtime error: exec: no such file or directory", false),
            (
                "to rootfs: mounting in another order: oci runtime error",
                false,
            ),
            ("command \"x\" not found in the image", false),
            ("", false),
        ] {
            assert_eq!(is_symptom(error), expected, "{error}");
        }
    }

    async fn said(alarm: Alarm) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let journal = Journal::new(file.reopen().unwrap(), ContainerUuid::generate("zzzzz"));
        alarm.raise("disk full", &journal).await;
        fs::read_to_string(file.path()).unwrap()
    }

    #[tokio::test]
    async fn a_hook_is_run_and_its_words_are_in_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("hook");
        fs::write(
            &program,
            "#!/bin/sh\necho \"drained: $1 $ARVADOS_API_TOKEN\"; exit 3\n",
        )
        .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let log = said(Alarm::Hook(program)).await;
        assert!(
            log.contains("drained: disk full \n") || log.contains("drained: disk full\n"),
            "{log}"
        );
        assert!(log.contains("The hook failed: exit status: 3"), "{log}");
        let log = said(Alarm::Hook("/no/such/hook".into())).await;
        assert!(log.contains("/no/such/hook cannot be run: "), "{log}");
    }

    #[tokio::test]
    async fn without_a_hook_a_file_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let marker = dir.path().join("crunch-run-broken");
        said(Alarm::Marker(marker.clone())).await;
        assert_eq!(fs::read_to_string(marker).unwrap(), "disk full\n");
        let log = said(Alarm::Marker("/no/such/dir/x".into())).await;
        assert!(log.contains("/no/such/dir/x cannot be written: "), "{log}");
    }
}

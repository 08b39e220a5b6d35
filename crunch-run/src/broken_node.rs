//! A node that cannot run anything would fail one container after the other, fast. Its symptoms are known; whoever
//! looks after nodes is told by a hook of theirs, or by a marker file.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
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
/// Bytes kept of what a hook says on stdout, and on stderr.
const HOOK_WORDS: u64 = 8 << 10;

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
    match tokio::time::timeout(HOOK_PATIENCE, run_hook(program, reason)).await {
        Ok(Ok((status, words))) => {
            for text in words {
                let text = String::from_utf8_lossy(&text);
                if !text.trim().is_empty() {
                    journal.say(text);
                }
            }
            if !status.success() {
                journal.say(format!("The hook failed: {status}"));
            }
        }
        Ok(Err(error)) => journal.say(format!("The hook {shown} cannot be run: {error}")),
        Err(_) => journal.say(format!(
            "The hook did not end within {} s and was killed",
            HOOK_PATIENCE.as_secs()
        )),
    }
}

/// How it ended, and what it said on stdout and stderr.
async fn run_hook(program: &Path, reason: &str) -> io::Result<(ExitStatus, [Vec<u8>; 2])> {
    let mut child = Command::new(program)
        .arg(reason)
        // Not its business.
        .env_remove("ARVADOS_API_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr, status) = tokio::join!(first(stdout), first(stderr), child.wait());
    Ok((status?, [stdout?, stderr?]))
}

/// The beginning of what it says; the rest is read, so that it can end, and not kept.
async fn first(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut words = Vec::new();
    if let Some(mut from) = from {
        (&mut from).take(HOOK_WORDS).read_to_end(&mut words).await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(words)
}

/// Its usual place is a directory of everybody's: no link there is followed.
fn mark(path: &Path, reason: &str, journal: &Journal) {
    let shown = path.display();
    let write = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        writeln!(file, "{reason}")
    };
    journal.say(match write() {
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
    use tokio::io::AsyncWriteExt;

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

    /// By another process: one that is forked by another test must not have it open.
    async fn write(program: &Path, text: &str) {
        let mut shell = Command::new("sh")
            .args(["-c", "cat >\"$0\"; chmod 700 \"$0\""])
            .arg(program)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = shell.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).await.unwrap();
        drop(stdin);
        assert!(shell.wait().await.unwrap().success());
    }

    #[tokio::test]
    async fn a_hook_is_run_and_its_words_are_in_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("hook");
        let text = "#!/bin/sh\necho \"drained: $1 $ARVADOS_API_TOKEN\"; exit 3\n";
        write(&program, text).await;
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
        // Somebody wants another file overwritten.
        let (link, precious) = (dir.path().join("link"), dir.path().join("precious"));
        fs::write(&precious, "kept").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        let log = said(Alarm::Marker(link)).await;
        assert!(log.contains("cannot be written: "), "{log}");
        assert_eq!(fs::read_to_string(precious).unwrap(), "kept");
    }

    #[tokio::test]
    async fn of_a_hook_that_talks_too_much_the_beginning_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("hook");
        let flood = "#!/bin/sh\necho begin; head -c 3000000 /dev/zero | tr '\\0' x\n";
        write(&program, flood).await;
        let log = said(Alarm::Hook(program)).await;
        assert!(log.contains("begin\n") && !log.contains("failed"));
        let most = HOOK_WORDS as usize + 1000;
        assert!(log.len() < most, "{} bytes", log.len());
    }
}

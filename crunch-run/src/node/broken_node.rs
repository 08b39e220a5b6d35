//! Reports a broken node by a hook or a marker file. Without that, the node would fail one
//! container after the other.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use host_state::private_dir;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::logs::RunLog;

/// Words, in this order and any case, of errors that mean a broken node. The last ones are the end
/// of the error: there the program tells its reason. Names of the request and of its image are in
/// the middle, and may have any words.
const SYMPTOMS: [&[&str]; 4] = [
    &[
        "cannot connect to the docker daemon",
        "is the docker daemon running?",
    ],
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
/// Timeout of the hook.
const HOOK_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of bytes kept of the hook's stdout, and of its stderr.
const MAX_HOOK_OUTPUT_BYTES: u64 = 8 << 10;

/// What programs write after the reason: Rust's number of an error, Docker's class of it, quotes.
const AFTER_THE_REASON: [&str; 3] = ["(os error 28)", ": unknown", "\""];

/// Whether an engine's error says that the node is broken.
pub fn is_symptom(error: &str) -> bool {
    let error = error.to_lowercase();
    let mut error = error.trim_end();
    while let Some(shorter) = AFTER_THE_REASON
        .iter()
        .find_map(|end| error.strip_suffix(end))
    {
        error = shorter.trim_end();
    }
    SYMPTOMS.iter().any(|words| {
        let (last, first) = words.split_last().unwrap_or((&"", &[]));
        let Some(mut rest) = error.strip_suffix(last) else {
            return false;
        };
        first.iter().all(|word| match rest.split_once(word) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    })
}

/// How a broken node is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokenNodeHook {
    /// A program, with the reason as its argument.
    Program(PathBuf),
    /// A file with the reason in it.
    Marker(PathBuf),
}

impl BrokenNodeHook {
    /// Reports the broken node. Errors are logged and have no other effect.
    pub async fn run(&self, reason: &str, run_log: &RunLog) {
        run_log.write(format!("This node seems to be broken: {reason}"));
        match self {
            Self::Program(program) => run_program(program, reason, run_log).await,
            Self::Marker(path) => write_marker(path, reason, run_log),
        }
    }
}

async fn run_program(program: &Path, reason: &str, run_log: &RunLog) {
    let shown = program.display();
    run_log.write(format!("Running the broken-node hook {shown}"));
    match tokio::time::timeout(HOOK_TIMEOUT, wait_for_program(program, reason)).await {
        Ok(Ok((status, words))) => {
            for text in words {
                let text = String::from_utf8_lossy(&text);
                if !text.trim().is_empty() {
                    run_log.write(text);
                }
            }
            if !status.success() {
                run_log.write(format!("The hook failed: {status}"));
            }
        }
        Ok(Err(error)) => run_log.write(format!("The hook {shown} cannot be run: {error}")),
        Err(_) => run_log.write(format!(
            "The hook did not end within {} s and was killed",
            HOOK_TIMEOUT.as_secs()
        )),
    }
}

/// Returns the exit status and the output.
async fn wait_for_program(program: &Path, reason: &str) -> io::Result<(ExitStatus, [Vec<u8>; 2])> {
    let mut child = Command::new(program)
        .arg(reason)
        // The hook must not get the token.
        .env_remove("ARVADOS_API_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr, status) =
        tokio::join!(read_beginning(stdout), read_beginning(stderr), child.wait());
    Ok((status?, [stdout?, stderr?]))
}

/// Reads the beginning of the output. The rest is discarded, so that the hook does not block.
async fn read_beginning(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut words = Vec::new();
    if let Some(mut from) = from {
        (&mut from)
            .take(MAX_HOOK_OUTPUT_BYTES)
            .read_to_end(&mut words)
            .await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(words)
}

/// Writes the marker file. The default directory is writable for everyone.
fn write_marker(path: &Path, reason: &str, run_log: &RunLog) {
    let shown = path.display();
    run_log.write(match private_dir::write(path, format!("{reason}\n").as_bytes()) {
        Ok(()) => format!(
            "Wrote {shown} to mark this node as broken; remove the file when the node is repaired"
        ),
        Err(error) => format!("{shown} cannot be written: {error}"),
    });
}

#[cfg(test)]
mod tests {
    use std::fs;

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
            ("rename a: no space left on device: unknown", true),
            ("oci runtime error: exec: no such file or directory", false),
            // Names of files in an image, and of mounts.
            (
                "openat2 `grpc: the connection is unavailable`: invalid cross-device link",
                false,
            ),
            (
                "no rootfs: EINVAL (mounts at /no space left on device, /out)",
                false,
            ),
            (
                "/Cannot connect to the Docker daemon. Is the docker daemon running?/x: no file",
                false,
            ),
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

    async fn run_and_read_log(alarm: BrokenNodeHook) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let run_log = RunLog::new(file.reopen().unwrap(), ContainerUuid::generate("zzzzz"));
        alarm.run("disk full", &run_log).await;
        fs::read_to_string(file.path()).unwrap()
    }

    /// Another process writes the hook: a process forked by another test must not have it open.
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
        let log = run_and_read_log(BrokenNodeHook::Program(program)).await;
        assert!(
            log.contains("drained: disk full \n") || log.contains("drained: disk full\n"),
            "{log}"
        );
        assert!(log.contains("The hook failed: exit status: 3"), "{log}");
        let log = run_and_read_log(BrokenNodeHook::Program("/no/such/hook".into())).await;
        assert!(log.contains("/no/such/hook cannot be run: "), "{log}");
    }

    #[tokio::test]
    async fn without_a_hook_a_file_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let marker = dir.path().join("crunch-run-broken");
        run_and_read_log(BrokenNodeHook::Marker(marker.clone())).await;
        assert_eq!(fs::read_to_string(marker).unwrap(), "disk full\n");
        let log = run_and_read_log(BrokenNodeHook::Marker("/no/such/dir/x".into())).await;
        assert!(log.contains("/no/such/dir/x cannot be written: "), "{log}");
        // An attacker's link to a file that must not be overwritten.
        let (link, precious) = (dir.path().join("link"), dir.path().join("precious"));
        fs::write(&precious, "kept").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        let log = run_and_read_log(BrokenNodeHook::Marker(link)).await;
        assert!(log.contains("cannot be written: "), "{log}");
        assert_eq!(fs::read_to_string(precious).unwrap(), "kept");
    }

    #[tokio::test]
    async fn of_a_hook_that_talks_too_much_the_beginning_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("hook");
        let flood = "#!/bin/sh\necho begin; head -c 3000000 /dev/zero | tr '\\0' x\n";
        write(&program, flood).await;
        let log = run_and_read_log(BrokenNodeHook::Program(program)).await;
        assert!(log.contains("begin\n") && !log.contains("failed"));
        let most = MAX_HOOK_OUTPUT_BYTES as usize + 1000;
        assert!(log.len() < most, "{} bytes", log.len());
    }
}

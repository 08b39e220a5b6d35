//! Copies the container's stdout or stderr from its pipe to a log file, on a thread of its own. A
//! slow disk delays only the container that writes.

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Timestamper, TruncatingWriter, write_stamp};

const READ_SIZE: usize = 64 << 10;

/// Result of copying one stream.
#[derive(Debug, Default)]
pub struct PumpResult {
    /// Number of bytes left out because of the limit.
    pub dropped: u64,
    /// Why the log is not complete.
    pub error: Option<io::Error>,
}

#[derive(Debug)]
pub struct Pump {
    done: oneshot::Receiver<PumpResult>,
}

impl Pump {
    /// Creates a pipe. Returns its writing end for the container, and the pump that copies it to
    /// `log`.
    pub fn start(log: File, limit: u64) -> io::Result<(OwnedFd, Self)> {
        Self::start_with_observer(log, limit, |_| {})
    }

    /// Like [`start`](Self::start); `observe` gets a copy of the bytes.
    pub fn start_with_observer(
        log: File,
        limit: u64,
        observe: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<(OwnedFd, Self)> {
        let (reading, writing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (sender, done) = oneshot::channel();
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                // The receiver is gone if the container's end could not be seen in time.
                let _ = sender.send(copy_stream(reading.into(), log, limit, observe));
            })?;
        Ok((writing, Self { done }))
    }

    /// Waits until the container has closed the pipe and everything is written.
    pub async fn finish(self, timeout: Duration) -> PumpResult {
        let failed = |text: String| PumpResult {
            dropped: 0,
            error: Some(io::Error::other(text)),
        };
        match tokio::time::timeout(timeout, self.done).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => failed("the thread that wrote it ended".to_owned()),
            Err(_) => failed(format!(
                "a process still holds it open {} seconds after the container's end",
                timeout.as_secs()
            )),
        }
    }
}

fn copy_stream(
    mut pipe: File,
    log: File,
    limit: u64,
    mut observe: impl FnMut(&[u8]),
) -> PumpResult {
    let mut stamper = Timestamper::default();
    let mut log = TruncatingWriter::new(BufWriter::with_capacity(READ_SIZE, log), limit);
    let mut buffer = vec![0; READ_SIZE];
    let mut lines = Vec::new();
    let mut result = PumpResult::default();
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                observe(&buffer[..count]);
                lines.clear();
                stamper.feed(&buffer[..count], write_stamp, &mut lines);
                // After a write error the pipe is still read, so that the container does not block.
                if result.error.is_none() {
                    let written = log
                        .write(&lines, write_stamp)
                        .and_then(|()| log.flush_if_waiting(count < READ_SIZE));
                    result.error = written.err();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                result.error = Some(error);
                break;
            }
        }
    }
    if result.error.is_none() {
        match log.finish(write_stamp) {
            Ok(dropped) => result.dropped = dropped,
            Err(error) => result.error = Some(error),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn everything_arrives_stamped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stdout.txt");
        let (writing, pump) = Pump::start(File::create(&path).unwrap(), 1 << 20).unwrap();
        let mut writing = File::from(writing);
        writing.write_all(b"one\ntw").unwrap();
        writing.write_all(b"o").unwrap();
        drop(writing);
        let result = pump.finish(Duration::from_secs(300)).await;
        assert!(result.error.is_none() && result.dropped == 0);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().map(|l| &l[31..]).collect();
        assert_eq!(lines, ["one", "two"]);
    }

    #[tokio::test]
    async fn a_pipe_that_stays_open_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let log = File::create(dir.path().join("x")).unwrap();
        let (_writing, pump) = Pump::start(log, 10).unwrap();
        let result = pump.finish(Duration::from_millis(20)).await;
        assert!(result.error.unwrap().to_string().contains("still holds it"));
    }

    #[tokio::test]
    async fn two_million_lines_keep_their_order() {
        const LAST_NUMBER: u64 = 2_000_000;
        let log = tempfile::NamedTempFile::new().unwrap();
        let (writing, pump) = Pump::start(log.reopen().unwrap(), u64::MAX).unwrap();
        let writer = std::thread::spawn(move || {
            let mut writing = BufWriter::new(File::from(writing));
            for number in 0..=LAST_NUMBER {
                writeln!(writing, "{number}").unwrap();
            }
        });
        let result = pump.finish(Duration::from_secs(300)).await;
        writer.join().unwrap();
        assert!(result.error.is_none() && result.dropped == 0, "{result:?}");
        let text = std::fs::read_to_string(log.path()).unwrap();
        let mut count = 0;
        for line in text.lines() {
            assert_eq!(line[31..].parse(), Ok(count));
            count += 1;
        }
        assert_eq!(count, LAST_NUMBER + 1);
    }
}

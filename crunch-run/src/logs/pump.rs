//! Carries the container's stdout or stderr from its pipe into a log file, on a thread of its own: a slow
//! disk must not hold up anything but the container that writes.

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Capped, Stamper, write_stamp};

const READ_SIZE: usize = 64 << 10;

/// What became of the stream.
#[derive(Debug, Default)]
pub struct Pumped {
    /// Bytes beyond the limit.
    pub dropped: u64,
    /// Why the log is not complete.
    pub error: Option<io::Error>,
}

#[derive(Debug)]
pub struct Pump {
    done: oneshot::Receiver<Pumped>,
}

impl Pump {
    /// A pipe's writing end for the container, and the pump that empties it into `log`.
    pub fn start(log: File, limit: u64) -> io::Result<(OwnedFd, Self)> {
        Self::start_heard(log, limit, |_| {})
    }

    /// The same, and `hear` gets what comes as well.
    pub fn start_heard(
        log: File,
        limit: u64,
        hear: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<(OwnedFd, Self)> {
        let (reading, writing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (tell, done) = oneshot::channel();
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                // Nobody waits any more when the container's end could not be seen in time.
                let _ = tell.send(carry(reading.into(), log, limit, hear));
            })?;
        Ok((writing, Self { done }))
    }

    /// Waits until the container has closed the pipe and everything is written.
    pub async fn finish(self, patience: Duration) -> Pumped {
        let failed = |text: String| Pumped {
            dropped: 0,
            error: Some(io::Error::other(text)),
        };
        match tokio::time::timeout(patience, self.done).await {
            Ok(Ok(pumped)) => pumped,
            Ok(Err(_)) => failed("the thread that wrote it ended".to_owned()),
            Err(_) => failed(format!(
                "a process still holds it open {} seconds after the container's end",
                patience.as_secs()
            )),
        }
    }
}

fn carry(mut pipe: File, log: File, limit: u64, mut hear: impl FnMut(&[u8])) -> Pumped {
    let mut stamper = Stamper::default();
    let mut log = Capped::new(BufWriter::with_capacity(READ_SIZE, log), limit);
    let mut buffer = vec![0; READ_SIZE];
    let mut lines = Vec::new();
    let mut pumped = Pumped::default();
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hear(&buffer[..count]);
                lines.clear();
                stamper.feed(&buffer[..count], write_stamp, &mut lines);
                // After a failure the pipe is still emptied: the container must not block on it.
                if pumped.error.is_none() {
                    let written = log
                        .write(&lines, write_stamp)
                        .and_then(|()| log.flush_if_waiting(count < READ_SIZE));
                    pumped.error = written.err();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                pumped.error = Some(error);
                break;
            }
        }
    }
    lines.clear();
    stamper.finish(write_stamp, &mut lines);
    if pumped.error.is_none() {
        match log
            .write(&lines, write_stamp)
            .and_then(|()| log.finish(write_stamp))
        {
            Ok(dropped) => pumped.dropped = dropped,
            Err(error) => pumped.error = Some(error),
        }
    }
    pumped
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
        let pumped = pump.finish(Duration::from_secs(300)).await;
        assert!(pumped.error.is_none() && pumped.dropped == 0);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().map(|l| &l[31..]).collect();
        assert_eq!(lines, ["one", "two"]);
    }

    #[tokio::test]
    async fn a_pipe_that_stays_open_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let log = File::create(dir.path().join("x")).unwrap();
        let (_writing, pump) = Pump::start(log, 10).unwrap();
        let pumped = pump.finish(Duration::from_millis(20)).await;
        assert!(pumped.error.unwrap().to_string().contains("still holds it"));
    }

    #[tokio::test]
    async fn two_million_lines_keep_their_order() {
        const LAST: u64 = 2_000_000;
        let log = tempfile::NamedTempFile::new().unwrap();
        let (writing, pump) = Pump::start(log.reopen().unwrap(), u64::MAX).unwrap();
        let writer = std::thread::spawn(move || {
            let mut writing = BufWriter::new(File::from(writing));
            for number in 0..=LAST {
                writeln!(writing, "{number}").unwrap();
            }
        });
        let pumped = pump.finish(Duration::from_secs(300)).await;
        writer.join().unwrap();
        assert!(pumped.error.is_none() && pumped.dropped == 0, "{pumped:?}");
        let text = std::fs::read_to_string(log.path()).unwrap();
        let mut count = 0;
        for line in text.lines() {
            assert_eq!(line[31..].parse(), Ok(count));
            count += 1;
        }
        assert_eq!(count, LAST + 1);
    }
}

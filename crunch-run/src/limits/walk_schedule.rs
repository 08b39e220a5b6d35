//! When directories with limits are measured again: decides from how long the last walk took, and
//! from the free space of their file systems.
//!
//! A walk of many files takes seconds, so that it is rare. Free space is read at once: if it fell
//! by as much as a limit leaves, somebody may have exceeded it, and `usage_monitor.rs` walks.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Measure;

/// Interval between two walks of directories that do not grow.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two walks of directories that grow, and between two reads of free space. A disk
/// takes gigabytes in a second.
const GROWTH_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between two walks, as a multiple of the duration of the last walk.
const WALK_TIME_FACTOR: u32 = 10;
/// The same beyond half of a limit.
const NEAR_WALK_TIME_FACTOR: u32 = 2;
/// The same where free space falls although the directories did not grow: others write, too.
const FALL_WALK_TIME_FACTOR: u32 = 4;

/// Bytes and files: what limits leave, or what file systems have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub bytes: u64,
    pub files: u64,
}

impl Room {
    pub const UNLIMITED: Self = Self {
        bytes: u64::MAX,
        files: u64::MAX,
    };

    /// Considers what one limit leaves. A file may be long and take nothing.
    pub fn lower(&mut self, measure: Measure, left: u64) {
        match measure {
            Measure::Bytes => self.bytes = self.bytes.min(left),
            Measure::Files => self.files = self.files.min(left),
            Measure::Length => {}
        }
    }
}

/// The times of walks.
#[derive(Debug)]
pub struct WalkSchedule {
    interval: Duration,
    /// Minimum interval if free space falls.
    fall_interval: Duration,
}

impl WalkSchedule {
    pub fn new() -> Self {
        Self {
            interval: GROWTH_POLL_INTERVAL,
            fall_interval: Duration::ZERO,
        }
    }

    /// Takes the duration of a walk, whether the directories grew, and whether they take more than
    /// half of a limit.
    pub fn record(&mut self, walk_time: Duration, grows: bool, is_near: bool) {
        let interval = match grows {
            true => GROWTH_POLL_INTERVAL,
            false => (self.interval * 2).min(POLL_INTERVAL),
        };
        let factor = match is_near && grows {
            true => NEAR_WALK_TIME_FACTOR,
            false => WALK_TIME_FACTOR,
        };
        self.interval = interval.max(walk_time * factor);
        self.fall_interval = match grows {
            true => walk_time,
            false => walk_time * FALL_WALK_TIME_FACTOR,
        };
    }

    /// Waits until the next walk. `before` is the free space when the last walk began, `left` what
    /// the limits left then.
    pub async fn wait(&self, dirs: &[PathBuf], before: &[Room], left: Room) {
        let began = Instant::now();
        while !self.is_due(began.elapsed(), false) {
            tokio::time::sleep(GROWTH_POLL_INTERVAL).await;
            // Not worth a read where the interval is over.
            if !self.is_due(began.elapsed(), false) {
                let has_fallen = has_fallen(before, &free_space(dirs).await, left);
                if self.is_due(began.elapsed(), has_fallen) {
                    return;
                }
            }
        }
    }

    /// Whether to walk after this time. `has_fallen` says that somebody took the space which the
    /// limits left: walks then take up to half of the time.
    fn is_due(&self, waited: Duration, has_fallen: bool) -> bool {
        waited >= self.interval || (has_fallen && waited >= self.fall_interval)
    }
}

/// Whether one of the file systems lost as much as the limits left.
fn has_fallen(before: &[Room], now: &[Room], left: Room) -> bool {
    before.iter().zip(now).any(|(before, now)| {
        before.bytes.saturating_sub(now.bytes) >= left.bytes.max(1)
            || before.files.saturating_sub(now.files) >= left.files.max(1)
    })
}

/// Free space of the file systems of these directories, read on a thread for blocking calls. A
/// directory that is not there has none.
pub async fn free_space(dirs: &[PathBuf]) -> Vec<Room> {
    let dirs = dirs.to_owned();
    let free = |dir: &PathBuf| match rustix::fs::statvfs(dir) {
        Ok(facts) => Room {
            bytes: facts.f_bfree.saturating_mul(facts.f_frsize),
            files: facts.f_ffree,
        },
        Err(_) => Room { bytes: 0, files: 0 },
    };
    let reading = tokio::task::spawn_blocking(move || dirs.iter().map(free).collect());
    reading.await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_walk_is_rare_unless_free_space_falls() {
        let seconds = Duration::from_secs_f64;
        // walk time, grows, near; waited, has fallen; due
        for (walk, grows, near, waited, has_fallen, expected) in [
            (0.0, true, false, 0.09, false, false),
            (0.0, true, false, 0.1, false, true),
            (0.0, false, false, 0.19, false, false),
            (0.0, false, false, 0.2, false, true),
            (2.0, true, false, 19.9, false, false),
            (2.0, true, false, 20.0, false, true),
            (2.0, true, true, 3.9, false, false),
            (2.0, true, true, 4.0, false, true),
            (2.0, false, true, 19.9, false, false),
            (2.0, true, false, 1.9, true, false),
            (2.0, true, false, 2.0, true, true),
            (2.0, false, false, 7.9, true, false),
            (2.0, false, false, 8.0, true, true),
        ] {
            let mut schedule = WalkSchedule::new();
            schedule.record(seconds(walk), grows, near);
            let found = schedule.is_due(seconds(waited), has_fallen);
            let case = (walk, grows, near, waited, has_fallen);
            assert_eq!(found, expected, "{case:?}");
        }
        let mut schedule = WalkSchedule::new();
        for _ in 0..100 {
            schedule.record(Duration::ZERO, false, false);
        }
        assert!(schedule.is_due(POLL_INTERVAL, false));
    }

    #[test]
    fn free_space_has_fallen_by_what_a_limit_left() {
        let room = |bytes, files| Room { bytes, files };
        for (before, now, left, expected) in [
            (room(100, 100), room(91, 91), room(10, 10), false),
            (room(100, 100), room(90, 100), room(10, 10), true),
            (room(100, 100), room(100, 90), room(10, 10), true),
            (room(100, 100), room(0, 0), Room::UNLIMITED, false),
            (room(100, 100), room(100, 100), room(0, 0), false),
            (room(100, 100), room(99, 100), room(0, 0), true),
            // Somebody deleted files.
            (room(100, 100), room(200, 200), room(1, 1), false),
        ] {
            let other = room(5, 5);
            let found = has_fallen(&[other, before], &[other, now], left);
            assert_eq!(found, expected, "{before:?} {now:?} {left:?}");
        }
    }

    /// The test ends only if the fall is seen: nothing else is due for hours.
    #[tokio::test]
    async fn what_is_written_ends_the_wait() {
        let program = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let dirs = [dir.path().join("none"), dir.path().to_owned()];
        let schedule = WalkSchedule {
            interval: Duration::from_secs(10_000),
            fall_interval: Duration::ZERO,
        };
        let before = free_space(&dirs).await;
        assert_eq!(before[0], Room { bytes: 0, files: 0 });
        assert!(before[1].bytes > 0);
        let left = Room {
            bytes: 1 << 20,
            ..Room::UNLIMITED
        };
        let write = async {
            // Others may delete files here meanwhile.
            for n in 0..1000 {
                let path = dir.path().join(n.to_string());
                tokio::fs::write(path, vec![1; 4 << 20]).await.unwrap();
                tokio::time::sleep(GROWTH_POLL_INTERVAL).await;
            }
            panic!("4 GB were not noticed");
        };
        tokio::select! {
            () = schedule.wait(&dirs, &before, left) => {}
            () = write => {}
        }
    }
}

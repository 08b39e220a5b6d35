//! The directory through which a test arms fail points in programs, and reads which were passed and
//! which killed.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A line of the file of passed or killed points.
#[derive(Debug, Clone)]
pub struct PassedPoint {
    pub point: String,
    pub arguments: String,
}

pub struct FailPointDir {
    dir: PathBuf,
}

impl FailPointDir {
    /// Fail points of the programs whose variable names `dir`.
    pub fn of(dir: &Path) -> Self {
        if !fail_points::ENABLED {
            panic!(
                "this test needs fail points in the programs and in itself: run `make test`, or add \
                 `--features fail-points/enabled` to both builds"
            );
        }
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Makes the files in `dir` writable for programs of any user.
    pub fn open_to_all(dir: &Path) {
        fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
        for notes in ["passed", "killed"] {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(dir.join(notes));
            let mode = Permissions::from_mode(0o666);
            file.unwrap().set_permissions(mode).unwrap();
        }
    }

    /// Kills the program that reaches the point for the `nth` time from now on.
    pub fn arm(&self, point: &str, nth: u32) {
        // Renamed into place: a program never reads half of it.
        let partial = self.dir.join("partial");
        fs::write(&partial, nth.to_string()).unwrap();
        // Every program decrements the count, also one of an ordinary user.
        fs::set_permissions(&partial, Permissions::from_mode(0o666)).unwrap();
        fs::rename(partial, self.dir.join(point)).unwrap();
    }

    pub fn is_armed(&self, point: &str) -> bool {
        self.dir.join(point).exists()
    }

    /// Blocks every program that reaches the point until [`Self::unblock`].
    pub fn block_at(&self, point: &str) {
        fs::write(self.dir.join(format!("{point}.hold")), "").unwrap();
    }

    pub fn unblock(&self, point: &str) {
        fs::remove_file(self.dir.join(format!("{point}.hold"))).unwrap();
    }

    pub fn passed(&self) -> Vec<PassedPoint> {
        self.read("passed")
    }

    pub fn killed(&self) -> Vec<PassedPoint> {
        self.read("killed")
    }

    fn read(&self, name: &str) -> Vec<PassedPoint> {
        let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        text.lines()
            .map(|line| {
                let mut words = line.splitn(3, ' ');
                let point = words.next().unwrap_or_default().to_owned();
                let arguments = words.nth(1).unwrap_or_default().to_owned();
                PassedPoint { point, arguments }
            })
            .collect()
    }
}

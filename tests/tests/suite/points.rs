//! The test's side of the fail points: what is armed, what was passed, who was killed.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// One line of what the programs noted.
#[derive(Debug, Clone)]
pub struct Passing {
    pub point: String,
    pub arguments: String,
}

pub struct Points {
    dir: PathBuf,
}

impl Points {
    /// Those of the programs that have `dir` in their variable.
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

    /// Those in `dir`, for programs of whatever user.
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

    /// The `nth` passing from now on kills.
    pub fn arm(&self, point: &str, nth: u32) {
        // Renamed into place: a program never reads half of it.
        let partial = self.dir.join("partial");
        fs::write(&partial, nth.to_string()).unwrap();
        // Whoever comes there counts it down, also an ordinary user.
        fs::set_permissions(&partial, Permissions::from_mode(0o666)).unwrap();
        fs::rename(partial, self.dir.join(point)).unwrap();
    }

    pub fn is_armed(&self, point: &str) -> bool {
        self.dir.join(point).exists()
    }

    /// Whoever comes to the point waits there until the release.
    pub fn hold(&self, point: &str) {
        fs::write(self.dir.join(format!("{point}.hold")), "").unwrap();
    }

    pub fn release(&self, point: &str) {
        fs::remove_file(self.dir.join(format!("{point}.hold"))).unwrap();
    }

    pub fn passed(&self) -> Vec<Passing> {
        self.read("passed")
    }

    pub fn killed(&self) -> Vec<Passing> {
        self.read("killed")
    }

    fn read(&self, name: &str) -> Vec<Passing> {
        let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        text.lines()
            .map(|line| {
                let mut words = line.splitn(3, ' ');
                let point = words.next().unwrap_or_default().to_owned();
                let arguments = words.nth(1).unwrap_or_default().to_owned();
                Passing { point, arguments }
            })
            .collect()
    }
}

//! The directory of one attempt: what lies where in it, and what is left of it in the end.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use arvados_client::ContainerUuid;

use crate::environment;
use crate::exit::ExitCode;
use crate::registry::Places;

#[derive(Debug, Clone)]
pub struct JobDir {
    path: PathBuf,
    /// Made by this program and removed with everything in it.
    own: bool,
}

impl JobDir {
    /// The directory a dispatcher made, or that it wants to be made.
    pub fn given(path: &Path) -> io::Result<Self> {
        make_private(path)?;
        Ok(Self {
            path: path.canonicalize()?,
            own: false,
        })
    }

    /// A new one for a run in the foreground.
    pub fn fresh(uuid: &ContainerUuid) -> io::Result<Self> {
        let parent = environment::temp_dir().canonicalize()?;
        loop {
            let path = parent.join(format!("crunch-run.{uuid}.{:08x}", fastrand::u32(..)));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, own: true }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// For whoever tidies up, should this process be killed.
    pub fn places(&self, scratch: Option<&Path>) -> Places {
        let absolute = |path: &Path| path.canonicalize().unwrap_or(path.to_owned());
        Places {
            job_dir: self.path.clone(),
            own: self.own,
            scratch: scratch.map(absolute),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn token(&self) -> PathBuf {
        self.path.join("token")
    }

    pub fn lock(&self) -> PathBuf {
        self.path.join("lock")
    }

    pub fn exit(&self) -> PathBuf {
        self.path.join("exit")
    }

    pub fn output_log(&self) -> PathBuf {
        self.path.join("output.log")
    }

    /// What `crunch-run resume` goes by.
    pub fn undelivered(&self) -> PathBuf {
        self.path.join("undelivered.json")
    }

    /// Room for what is written last.
    pub fn reserve(&self) -> PathBuf {
        self.path.join("reserve")
    }

    pub fn logs(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where collections are served, if they are.
    pub fn keep(&self) -> PathBuf {
        self.path.join("keep")
    }

    pub fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    /// Says how the worker ended, whole or not at all.
    pub fn write_exit(&self, code: ExitCode) -> io::Result<()> {
        let partial = self.path.join("exit.partial");
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&partial)?;
        write!(file, "{{\"code\":{}}}", code.code())?;
        file.sync_all()?;
        fs::rename(partial, self.exit())
    }

    /// What a dispatcher would take for the end of the attempt that begins now.
    pub fn forget_exit(&self) -> io::Result<()> {
        gone(fs::remove_file(self.exit()))
    }

    /// What an earlier attempt left: the one that begins now shows that its lock is lost.
    pub fn forget_undelivered(&self) -> io::Result<()> {
        gone(fs::remove_file(self.undelivered()))
    }

    /// Removes what this attempt made, and the token. Undelivered results stay, and with them the token to deliver
    /// them with.
    pub fn clean(&self, code: ExitCode) -> io::Result<()> {
        if code == ExitCode::Undelivered {
            return Ok(());
        }
        let token = gone(fs::remove_file(self.token()));
        if self.own {
            return gone(fs::remove_dir_all(&self.path));
        }
        self.forget_undelivered()?;
        gone(fs::remove_dir_all(self.logs()))?;
        gone(fs::remove_dir_all(self.scratch()))?;
        token
    }
}

/// A directory for this user only; one that is there is left as it is.
pub fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dispatcher_reads_is_left() {
        let parent = tempfile::tempdir().unwrap();
        for (code, left) in [
            (
                ExitCode::Recorded,
                &["exit", "job.json", "lock", "output.log"][..],
            ),
            (
                ExitCode::Undelivered,
                &[
                    "exit",
                    "job.json",
                    "lock",
                    "log",
                    "output.log",
                    "scratch",
                    "token",
                    "undelivered.json",
                ],
            ),
        ] {
            let dir = JobDir::given(&parent.path().join(code.code().to_string())).unwrap();
            for file in [
                "token",
                "lock",
                "job.json",
                "output.log",
                "undelivered.json",
            ] {
                fs::write(dir.path().join(file), "x").unwrap();
            }
            fs::create_dir_all(dir.logs().join("deep")).unwrap();
            fs::create_dir_all(dir.scratch()).unwrap();
            dir.write_exit(code).unwrap();
            dir.clean(code).unwrap();
            let mut names: Vec<String> = fs::read_dir(dir.path())
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            assert_eq!(names, left);
            let exit = fs::read_to_string(dir.exit()).unwrap();
            assert_eq!(exit, format!("{{\"code\":{}}}", code.code()));
        }
    }

    #[test]
    fn a_directory_of_our_own_is_private_and_vanishes() {
        use std::os::unix::fs::PermissionsExt;
        let uuid = ContainerUuid::generate("zzzzz");
        let dir = JobDir::fresh(&uuid).unwrap();
        let mode = fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        dir.clean(ExitCode::NeverRan).unwrap();
        assert!(!dir.path().exists());
    }
}

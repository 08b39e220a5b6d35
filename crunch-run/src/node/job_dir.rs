//! The job directory of one attempt: its file names, its creation and its cleanup.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use arvados_client::ContainerUuid;
use crunch_contract::ExitCode;
use crunch_contract::job_dir::{
    EXIT_FILE, ExitFile, LOCK_FILE, LOG_DIR, OUTPUT_LOG, TOKEN_FILE, UNDELIVERED_FILE,
};
use host_state::file::{Durability, create_private_dir, ignore_missing, remove_tree, replace};
use host_state::trash;

use crate::environment;
use crate::node::registry::RunPaths;

#[derive(Debug, Clone)]
pub struct JobDir {
    path: PathBuf,
    /// Created by this program, and removed with its content.
    own: bool,
}

impl JobDir {
    /// Opens the directory that a dispatcher created, or creates it.
    pub fn open(path: &Path) -> io::Result<Self> {
        create_private_dir(path)?;
        Ok(Self {
            path: path.canonicalize()?,
            own: false,
        })
    }

    /// Creates a temporary directory for a run in the foreground.
    pub fn create_temporary(uuid: &ContainerUuid) -> io::Result<Self> {
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

    /// The directories of this run, for cleanup if it is killed.
    pub fn run_paths(&self, scratch: Option<&Path>) -> RunPaths {
        let absolute = |path: &Path| path.canonicalize().unwrap_or(path.to_owned());
        RunPaths {
            job_dir: self.path.clone(),
            own: self.own,
            scratch: scratch.map(absolute),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn token(&self) -> PathBuf {
        self.path.join(TOKEN_FILE)
    }

    pub fn lock(&self) -> PathBuf {
        self.path.join(LOCK_FILE)
    }

    pub fn exit(&self) -> PathBuf {
        self.path.join(EXIT_FILE)
    }

    pub fn output_log(&self) -> PathBuf {
        self.path.join(OUTPUT_LOG)
    }

    /// File from which `crunch-run resume` delivers results.
    pub fn undelivered(&self) -> PathBuf {
        self.path.join(UNDELIVERED_FILE)
    }

    /// File that reserves disk space for the last writes.
    pub fn reserve(&self) -> PathBuf {
        self.path.join("reserve")
    }

    pub fn logs(&self) -> PathBuf {
        self.path.join(LOG_DIR)
    }

    /// Mount point of arv-mount.
    pub fn arv_mount_point(&self) -> PathBuf {
        self.path.join("keep")
    }

    pub fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    /// Writes the exit file atomically.
    pub fn write_exit(&self, code: ExitCode) -> io::Result<()> {
        let code = code.code().into();
        let text = serde_json::to_vec(&ExitFile { code })?;
        replace(&self.exit(), &text, Durability::Power)
    }

    /// Removes the exit file, which a dispatcher would take for the end of the new attempt.
    pub fn remove_exit_file(&self) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.exit()))
    }

    /// Removes the undelivered results of an earlier attempt. A new attempt means that its lock is
    /// lost.
    pub fn remove_undelivered(&self) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.undelivered()))
    }

    /// Discards the attempt's files and removes the token. Undelivered results stay, with the token
    /// that delivers them.
    pub fn clean(&self, code: ExitCode) -> io::Result<()> {
        if code == ExitCode::Undelivered {
            return Ok(());
        }
        let token = ignore_missing(fs::remove_file(self.token()));
        if self.own {
            return trash::discard(&self.path);
        }
        self.remove_undelivered()?;
        remove_tree(&self.logs())?;
        if self.scratch().exists() {
            trash::discard(&self.scratch())?;
        }
        token
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
            let dir = JobDir::open(&parent.path().join(code.code().to_string())).unwrap();
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
            dir.run_paths(None).empty_trash();
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
        let dir = JobDir::create_temporary(&uuid).unwrap();
        let mode = fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        dir.clean(ExitCode::NeverRan).unwrap();
        assert!(!dir.path().exists());
    }
}

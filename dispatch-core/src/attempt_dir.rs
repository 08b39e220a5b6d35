//! A container's directory while a job of it is there: the attempt's token for crunch-run, and what the job said.
//! Nobody but the dispatcher's user can read it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use fail_points::fail_point;

use crate::credentials::Credentials;

/// How much of the job's output is quoted, from its end.
const LAST_WORDS: u64 = 2000;
/// How long the file system may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// One container's directory. It need not be there.
#[derive(Debug, Clone)]
pub struct AttemptDir {
    path: PathBuf,
}

impl AttemptDir {
    /// The place for `container` in the dispatcher's own directory.
    pub fn of(home: &Path, container: &ContainerUuid) -> Self {
        Self {
            path: home.join(container.as_str()),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file with the attempt token.
    pub fn token_file(&self) -> PathBuf {
        self.path.join("token")
    }

    /// The file with the token of one attempt: a job that was left over from another does not find it.
    pub fn token_file_of(&self, attempt: &TokenUuid) -> PathBuf {
        self.path.join(token_name(attempt))
    }

    /// The file with what crunch-run says.
    pub fn output_file(&self) -> PathBuf {
        self.path.join("output.log")
    }

    /// Makes it for a new attempt, in place of an earlier one's.
    pub fn create(&self, credentials: &Credentials) -> io::Result<()> {
        self.create_with("token", credentials)
    }

    /// Makes it for `attempt`, whose job may start at any time, or never.
    pub fn create_for(&self, attempt: &TokenUuid, credentials: &Credentials) -> io::Result<()> {
        self.create_with(&token_name(attempt), credentials)
    }

    fn create_with(&self, name: &str, credentials: &Credentials) -> io::Result<()> {
        self.remove()?;
        DirBuilder::new().mode(0o700).create(&self.path)?;
        fail_point("dispatcher.directory-made");
        // Not forced to the disk, which would take longer than all the rest of a submission: a job whose token is lost with
        // the machine starts nothing, and its container is given back. Closed by name: a file server says only then that
        // it has no room.
        let file = self.new_file(name, credentials.file_content().expose().as_bytes())?;
        nix::unistd::close(file)?;
        fail_point("dispatcher.token-written");
        Ok(())
    }

    /// Writes a file, to the disk, for nobody else to read.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.new_file(name, content)?.sync_all()
    }

    fn new_file(&self, name: &str, content: &[u8]) -> io::Result<File> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path.join(name))?;
        file.write_all(content)?;
        Ok(file)
    }

    /// The end of what crunch-run said, in whole lines; empty where it said nothing, or where that cannot be read.
    pub fn last_words(&self) -> String {
        self.read_last_words().unwrap_or_default()
    }

    /// The same, or why it cannot be read.
    fn read_last_words(&self) -> io::Result<String> {
        let read = || -> io::Result<String> {
            let mut file = File::open(self.output_file())?;
            let skip = file.metadata()?.len().saturating_sub(LAST_WORDS);
            file.seek(SeekFrom::Start(skip))?;
            let mut bytes = Vec::new();
            file.take(LAST_WORDS).read_to_end(&mut bytes)?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Ok(match (skip, text.split_once('\n')) {
                (1.., Some((_, whole))) => whole.to_owned(),
                _ => text,
            })
        };
        match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            words => words,
        }
    }

    /// Removes it; one that is not there is removed.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Does `work` on it aside, within half a minute: it may lie on a file server that does not answer.
    pub async fn in_time<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.within(PATIENCE, work).await
    }

    async fn within<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let dir = self.clone();
        let aside = tokio::task::spawn_blocking(move || work(&dir));
        match tokio::time::timeout(patience, aside).await {
            Ok(done) => done.map_err(io::Error::other)?,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "the file system did not answer within {} s",
                    patience.as_secs()
                ),
            )),
        }
    }

    /// [`Self::last_words`], or why they cannot be read, also where the file system does not answer.
    pub async fn last_words_in_time(&self) -> io::Result<String> {
        self.in_time(Self::read_last_words).await
    }

    /// Removes it, and tells the log where that fails.
    pub async fn forget(&self) {
        if let Err(error) = self.in_time(Self::remove).await {
            tracing::warn!(directory = %self.path.display(), %error, "could not remove the job's directory");
        }
    }
}

/// The name of the file with the token of `attempt`.
pub fn token_name(attempt: &TokenUuid) -> String {
    token_name_of(attempt.as_str())
}

/// The same, where a scheduler puts the attempt's name in.
pub fn token_name_of(attempt: &str) -> String {
    format!("token-{attempt}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use arvados_client::Token;

    use super::*;

    fn token(text: &str) -> Credentials {
        Token::new(text).into()
    }

    #[test]
    fn the_token_is_for_its_owner_only_and_a_new_attempt_finds_nothing_old() {
        let home = tempfile::tempdir().unwrap();
        let dir = AttemptDir::of(home.path(), &ContainerUuid::generate("zzzzz"));
        dir.remove().unwrap();
        dir.create(&token("first")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(dir.path()), mode(&dir.token_file())), (0o700, 0o600));
        fs::write(dir.output_file(), "old").unwrap();
        dir.create(&token("second")).unwrap();
        assert_eq!(fs::read_to_string(dir.token_file()).unwrap(), "second");
        assert_eq!(dir.last_words(), "");
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_is_not_waited_for() {
        let dir = AttemptDir::of(Path::new("/"), &ContainerUuid::generate("zzzzz"));
        let (end, hangs) = std::sync::mpsc::channel::<()>();
        let work = move |_: &AttemptDir| hangs.recv().map_err(io::Error::other);
        let answer = dir.within(Duration::from_millis(50), work).await;
        drop(end);
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn last_words_are_whole_lines() {
        let home = tempfile::tempdir().unwrap();
        let dir = AttemptDir::of(home.path(), &ContainerUuid::generate("zzzzz"));
        dir.create(&token("x")).unwrap();
        fs::write(dir.output_file(), "short\n").unwrap();
        assert_eq!(dir.last_words(), "short\n");
        let long: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        fs::write(dir.output_file(), long).unwrap();
        let words = dir.last_words();
        assert!(
            words.starts_with("line ") && words.ends_with("line 999\n"),
            "{words}"
        );
    }
}

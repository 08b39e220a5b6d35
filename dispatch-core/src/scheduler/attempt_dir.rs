//! The directory of a container's job. Only the dispatcher's user can read it.
//!
//! Input: credentials for crunch-run, and the output log that the job writes. Output: the token
//! file, and the end of the job's output with its last status line.
//!
//! From before the lock until the directory is made, the token is in a file elsewhere: whoever
//! finds a directory takes it for that of a job.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::{ContainerUuid, Token, TokenUuid};
use crunch_contract::{StatusLine, job_dir, split_output};
use fail_points::fail_point;

use crate::scheduler::credentials::Credentials;

/// Number of bytes read from the end of the job's output.
const OUTPUT_TAIL_BYTES: u64 = 2000;
/// The directory, beside those of the jobs, of the tokens that are about to lock a container.
const LOCKS_DIR: &str = "locking";
/// Timeout of one operation on the directory.
const FILE_SYSTEM_TIMEOUT: Duration = Duration::from_secs(30);

/// The end of crunch-run's stdout and stderr.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputTail {
    /// Complete lines, without status lines.
    pub text: String,
    /// Last status line of crunch-run.
    pub status_line: Option<StatusLine>,
}

impl OutputTail {
    /// Whether there is no output.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.status_line.is_none()
    }

    /// Whether crunch-run reported that its results remain on the node. This counts where the exit
    /// code is unknown, since a scheduler may forget jobs while the API server is down.
    pub fn is_undelivered(&self) -> bool {
        matches!(self.status_line, Some(StatusLine::Undelivered { .. }))
    }
}

/// The directory of one container. It may not exist.
#[derive(Debug, Clone)]
pub struct AttemptDir {
    path: PathBuf,
}

impl AttemptDir {
    /// The directory for `container` in the state directory `home`.
    pub fn of(home: &Path, container: &ContainerUuid) -> Self {
        Self {
            path: home.join(container.as_str()),
        }
    }

    /// The containers whose tokens are recorded in the state directory `home`, and their attempts.
    pub async fn all(home: &Path) -> Vec<(ContainerUuid, TokenUuid)> {
        let dir = Self {
            path: home.to_owned(),
        };
        let read = dir.with_timeout(|dir| {
            let locks = host_state::file::if_present(fs::read_dir(dir.path.join(LOCKS_DIR)))?;
            // A lock is later than the job of an earlier attempt.
            let entries = fs::read_dir(&dir.path)?.chain(locks.into_iter().flatten());
            let known = entries.flatten().flat_map(|entry| {
                let name = entry.file_name();
                let container = name
                    .to_str()
                    .and_then(|name| ContainerUuid::parse(name).ok());
                let tokens = container.is_some().then(|| tokens_at(&entry.path()));
                let attempts = tokens
                    .into_iter()
                    .flatten()
                    .filter_map(|token| token.uuid());
                attempts
                    .filter_map(|attempt| Some((container.clone()?, attempt)))
                    .collect::<Vec<_>>()
            });
            Ok(known.collect())
        });
        read.await.unwrap_or_else(|error| {
            tracing::warn!(directory = %home.display(), %error, "could not read the directories of earlier jobs");
            Vec::new()
        })
    }

    /// Records the token before its lock is requested. After a restart with a dispatch token of
    /// another user, no server shows this token, and only this token can unlock. The record lasts
    /// until the directory is made or removed. It is not synced: what is lost in a crash of the
    /// machine is only one of two things that both have to go wrong.
    pub fn record_lock(&self, token: &Token) -> io::Result<()> {
        let file = self.lock_record();
        file.parent()
            .map_or(Ok(()), host_state::private_dir::create)?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true);
        let mut record = options.mode(0o600).open(file)?;
        record.write_all(token.expose().as_bytes())?;
        Ok(nix::unistd::close(record)?)
    }

    /// Removes what [`Self::record_lock`] recorded.
    pub fn forget_lock(&self) -> io::Result<()> {
        host_state::file::if_present(fs::remove_file(self.lock_record())).map(|_| ())
    }

    fn lock_record(&self) -> PathBuf {
        let locks = self.path.with_file_name(LOCKS_DIR);
        locks.join(self.path.file_name().unwrap_or_default())
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the attempt's token file.
    pub fn token_file(&self) -> PathBuf {
        self.path.join(job_dir::TOKEN_FILE)
    }

    /// Path of the token file of one particular attempt. A leftover job of another attempt does not
    /// find it.
    pub fn token_file_of(&self, attempt: &TokenUuid) -> PathBuf {
        self.path.join(job_dir::token_file_for(attempt.as_str()))
    }

    /// The token file of an attempt of which no job was ever submitted.
    fn withdrawn_token_file(&self, attempt: &TokenUuid) -> PathBuf {
        let name = job_dir::token_file_for(attempt.as_str());
        self.path.join(format!("{name}.not-submitted"))
    }

    /// Records that no scheduler was asked to run a job of `attempt`. Its token gets another name,
    /// so that the record is true whatever happens: a job that came all the same would not find it.
    pub fn withdraw_token(&self, attempt: &TokenUuid) -> io::Result<()> {
        let renamed = fs::rename(
            self.token_file_of(attempt),
            self.withdrawn_token_file(attempt),
        );
        host_state::file::if_present(renamed).map(|_| ())
    }

    /// Whether [`Self::withdraw_token`] recorded that no job of `attempt` was submitted.
    pub async fn was_not_submitted(&self, attempt: TokenUuid) -> bool {
        let found = self.with_timeout(move |dir| dir.withdrawn_token_file(&attempt).try_exists());
        found.await.unwrap_or(false)
    }

    /// The token of `attempt`, if its file is there.
    pub async fn token_of(&self, attempt: TokenUuid) -> Option<Token> {
        let read = self.with_timeout(move |dir| {
            let withdrawn = dir.withdrawn_token_file(&attempt);
            let files = [dir.token_file_of(&attempt), dir.token_file(), withdrawn];
            let files = files.into_iter().chain([dir.lock_record()]);
            let mut tokens = files.filter_map(|file| first_token(&file));
            Ok(tokens.find(|token| token.uuid().as_ref() == Some(&attempt)))
        });
        read.await.ok().flatten()
    }

    /// Path of crunch-run's output log.
    pub fn output_file(&self) -> PathBuf {
        self.path.join(job_dir::OUTPUT_LOG)
    }

    /// Creates the directory for a new attempt, in place of an earlier one's.
    pub fn create(&self, credentials: &Credentials) -> io::Result<()> {
        self.create_with(job_dir::TOKEN_FILE, credentials)
    }

    /// Creates the directory for `attempt`. Its job may start at any time, or never.
    pub fn create_for(&self, attempt: &TokenUuid, credentials: &Credentials) -> io::Result<()> {
        // A crash of the machine must not bring the record back once a job is submitted.
        let withdrawn = fs::remove_file(self.withdrawn_token_file(attempt));
        if host_state::file::if_present(withdrawn)?.is_some() {
            File::open(&self.path)?.sync_all()?;
        }
        self.create_with(&job_dir::token_file_for(attempt.as_str()), credentials)
    }

    fn create_with(&self, name: &str, credentials: &Credentials) -> io::Result<()> {
        host_state::file::remove_tree(&self.path)?;
        DirBuilder::new().mode(0o700).create(&self.path)?;
        fail_point("dispatcher.directory-made");
        // The file is not synced, because that would take longer than the rest of a submission. A
        // job whose token is lost in a crash of the machine starts nothing, and its container is
        // unlocked. The explicit close reports a full file system, which a file server may report
        // only then.
        let file = self.new_file(name, credentials.file_content().expose().as_bytes())?;
        nix::unistd::close(file)?;
        fail_point("dispatcher.token-written");
        self.forget_lock()
    }

    /// Writes and syncs a file that only the dispatcher's user can read.
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

    /// The end of the job's output. Empty if there is none, or if it cannot be read.
    pub fn output_tail(&self) -> OutputTail {
        self.read_output_tail().unwrap_or_default()
    }

    /// The end of the job's output, or the error that prevents reading it.
    fn read_output_tail(&self) -> io::Result<OutputTail> {
        let read = || -> io::Result<String> {
            let mut file = File::open(self.output_file())?;
            let skip = file.metadata()?.len().saturating_sub(OUTPUT_TAIL_BYTES);
            file.seek(SeekFrom::Start(skip))?;
            let mut bytes = Vec::new();
            file.take(OUTPUT_TAIL_BYTES).read_to_end(&mut bytes)?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Ok(match (skip, text.split_once('\n')) {
                (1.., Some((_, whole))) => whole.to_owned(),
                _ => text,
            })
        };
        let output = match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            output => output?,
        };
        let (text, status_line) = split_output(&output);
        Ok(OutputTail { text, status_line })
    }

    /// Removes the directory and the record of a lock. A missing directory is a success.
    pub fn remove(&self) -> io::Result<()> {
        host_state::file::remove_tree(&self.path)?;
        self.forget_lock()
    }

    /// Runs `work` on a blocking thread, with a timeout of 30 s: the directory may be on a file
    /// server that does not answer.
    pub async fn with_timeout<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.within_timeout(FILE_SYSTEM_TIMEOUT, work).await
    }

    async fn within_timeout<T: Send + 'static>(
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

    /// [`Self::output_tail`] with a timeout, or the error that prevents reading it.
    pub async fn output_tail_with_timeout(&self) -> io::Result<OutputTail> {
        self.with_timeout(Self::read_output_tail).await
    }

    /// Removes the directory and logs a failure.
    pub async fn remove_logged(&self) {
        if let Err(error) = self.with_timeout(Self::remove).await {
            tracing::warn!(directory = %self.path.display(), %error, "could not remove the job's directory");
        }
    }
}

/// The tokens in the record of a lock, or in the token files of a job directory.
fn tokens_at(path: &Path) -> Vec<Token> {
    let Ok(files) = fs::read_dir(path) else {
        return first_token(path).into_iter().collect();
    };
    let is_token = |file: &fs::DirEntry| {
        let name = file.file_name();
        name.to_str()
            .is_some_and(|name| name.starts_with(job_dir::TOKEN_FILE))
    };
    let files = files.flatten().filter(is_token);
    files.filter_map(|file| first_token(&file.path())).collect()
}

/// The token on the first line of a file. None: it cannot be read.
fn first_token(file: &Path) -> Option<Token> {
    let content = fs::read_to_string(file).ok()?;
    content.lines().next().map(Token::new)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        assert_eq!(dir.output_tail(), OutputTail::default());
    }

    #[tokio::test]
    async fn a_token_is_read_back_only_as_that_of_its_attempt() {
        let home = tempfile::tempdir().unwrap();
        let container = ContainerUuid::generate("zzzzz");
        let dir = AttemptDir::of(home.path(), &container);
        let [attempt, other] = [(); 2].map(|()| TokenUuid::generate("zzzzz"));
        assert!(dir.token_of(attempt.clone()).await.is_none());
        let credentials = Credentials {
            token: Token::v2(&attempt, "sesame"),
            gateway_secret: Some(Token::new("gateway")),
        };
        for shared in [false, true] {
            match shared {
                true => dir.create(&credentials).unwrap(),
                false => dir.create_for(&attempt, &credentials).unwrap(),
            }
            assert_eq!(
                AttemptDir::all(home.path()).await,
                [(container.clone(), attempt.clone())]
            );
            let read = dir.token_of(attempt.clone()).await.unwrap();
            assert_eq!(read.expose(), credentials.token.expose());
            assert!(dir.token_of(other.clone()).await.is_none());
        }
    }

    /// From before the lock until its job directory is made or not needed.
    #[tokio::test]
    async fn a_token_is_recorded_before_its_lock_until_its_directory_has_it() {
        let home = tempfile::tempdir().unwrap();
        let container = ContainerUuid::generate("zzzzz");
        let dir = AttemptDir::of(home.path(), &container);
        let [attempt, earlier] = [(); 2].map(|()| TokenUuid::generate("zzzzz"));
        dir.forget_lock().unwrap();
        for created in [false, true] {
            dir.record_lock(&Token::v2(&earlier, "longer than the next"))
                .unwrap();
            dir.record_lock(&Token::v2(&attempt, "sesame")).unwrap();
            assert!(!dir.path().exists(), "a directory is that of a job");
            let of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            let record = dir.lock_record();
            assert_eq!((of(&record), of(record.parent().unwrap())), (0o600, 0o700));
            let found = [(container.clone(), attempt.clone())];
            assert_eq!(AttemptDir::all(home.path()).await, found);
            let read = dir.token_of(attempt.clone()).await.unwrap();
            assert_eq!(read.expose(), Token::v2(&attempt, "sesame").expose());
            assert!(dir.token_of(earlier.clone()).await.is_none());
            match created {
                true => dir.create_for(&attempt, &read.into()).unwrap(),
                false => dir.remove().unwrap(),
            }
            assert!(!record.exists());
            assert_eq!(dir.token_of(attempt.clone()).await.is_some(), created);
        }
    }

    /// A job that comes all the same finds no token; the dispatcher finds it.
    #[tokio::test]
    async fn the_token_of_an_attempt_without_a_job_is_withdrawn_until_it_is_submitted() {
        let home = tempfile::tempdir().unwrap();
        let container = ContainerUuid::generate("zzzzz");
        let dir = AttemptDir::of(home.path(), &container);
        let [attempt, other] = [(); 2].map(|()| TokenUuid::generate("zzzzz"));
        dir.withdraw_token(&attempt).unwrap();
        assert!(!dir.was_not_submitted(attempt.clone()).await);
        let credentials = Credentials::from(Token::v2(&attempt, "sesame"));
        dir.create_for(&attempt, &credentials).unwrap();
        assert!(!dir.was_not_submitted(attempt.clone()).await);
        for _ in 0..2 {
            dir.withdraw_token(&attempt).unwrap();
            assert!(!dir.token_file_of(&attempt).exists());
            assert!(dir.was_not_submitted(attempt.clone()).await);
            assert!(!dir.was_not_submitted(other.clone()).await);
            assert!(dir.token_of(attempt.clone()).await.is_some());
            let found = [(container.clone(), attempt.clone())];
            assert_eq!(AttemptDir::all(home.path()).await, found);
        }
        dir.create_for(&attempt, &credentials).unwrap();
        assert!(dir.token_file_of(&attempt).exists());
        assert!(!dir.was_not_submitted(attempt).await);
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_is_not_waited_for() {
        let dir = AttemptDir::of(Path::new("/"), &ContainerUuid::generate("zzzzz"));
        let (end, hangs) = std::sync::mpsc::channel::<()>();
        let work = move |_: &AttemptDir| hangs.recv().map_err(io::Error::other);
        let answer = dir.within_timeout(Duration::from_millis(50), work).await;
        drop(end);
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn the_tail_of_the_output_is_whole_lines() {
        let home = tempfile::tempdir().unwrap();
        let dir = AttemptDir::of(home.path(), &ContainerUuid::generate("zzzzz"));
        dir.create(&token("x")).unwrap();
        fs::write(dir.output_file(), "short\n").unwrap();
        assert_eq!(dir.output_tail().text, "short\n");
        let long: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        fs::write(dir.output_file(), long).unwrap();
        let text = dir.output_tail().text;
        assert!(
            text.starts_with("line ") && text.ends_with("line 999\n"),
            "{text}"
        );
    }
}

//! The demand as values: whether the computation goes on, how many workers are wanted, and how one
//! is started.

use sha2::{Digest, Sha256};

/// Seconds from 1900, the epoch of universal time in Lisp, to 1970.
pub const UNIVERSAL_EPOCH: u64 = 2_208_988_800;
/// Maximum size of a demand file. A real one has a few hundred bytes.
pub const MAX_FILE_BYTES: usize = 64 << 10;

/// Status of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The computation goes on.
    InProgress,
    /// The computation is finished: no more workers are wanted.
    Finished,
}

impl Status {
    /// Spelling in the file, without the colon of Lisp.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in-progress",
            Self::Finished => "finished",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::InProgress, Self::Finished]
            .into_iter()
            .find(|status| status.as_str() == word)
    }
}

/// The command that starts a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Absolute path of the program.
    pub program: String,
    /// Absolute paths of the shared libraries that it loads.
    pub libraries: Vec<String>,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Content of a demand file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Status of the computation.
    pub status: Status,
    /// When it was written, in seconds since 1970.
    pub written_at: u64,
    /// Name of the master that wrote it; workers give it when they connect.
    pub member_id: String,
    /// Seconds until the file is written again.
    pub update_interval: u64,
    /// Number of workers wanted beside the connected ones.
    pub needed: u32,
    /// Command of a worker.
    pub worker: Worker,
}

impl Demand {
    /// The complete command of a worker. The master of CL-MW leaves its member id out of the
    /// arguments of its slaves, but refuses slaves that connect without it.
    pub fn command(&self) -> Worker {
        let mut worker = self.worker.clone();
        let has = |word: &str| worker.arguments.iter().any(|argument| argument == word);
        if has("--mw-slave") && !has("--mw-member-id") {
            worker.arguments.push("--mw-member-id".to_owned());
            worker.arguments.push(self.member_id.clone());
        }
        worker
    }
}

impl Worker {
    /// Hash of the command; two different commands have different hashes.
    pub fn command_hash(&self) -> String {
        let mut hash = Sha256::new();
        let lists = [
            std::slice::from_ref(&self.program),
            &self.libraries,
            &self.arguments,
        ];
        for list in lists {
            // Lengths are hashed too, so that no two commands give the same bytes.
            hash.update((list.len() as u64).to_be_bytes());
            for word in list {
                hash.update((word.len() as u64).to_be_bytes());
                hash.update(word);
            }
        }
        let digest = hash.finalize();
        digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

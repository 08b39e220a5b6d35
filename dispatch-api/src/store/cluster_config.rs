//! Constants of one server that every write needs: ids, keys, limits and the emulated server.

use crate::auth::attempt_token::AttemptKey;
use crate::blocks::signature::BlockSigner;
use crate::emulation::Emulate;
use crate::schema::Resource;

/// Number of locks after which a container that is unlocked again is cancelled.
pub const MAX_DISPATCH_ATTEMPTS: i64 = 10;
/// Number of containers that a request gets, unless it says another.
pub const CONTAINER_COUNT_MAX: i64 = 3;

pub struct ClusterConfig {
    pub cluster_id: String,
    pub attempt_key: AttemptKey,
    pub block_signer: BlockSigner,
    /// Whether requests may ask for preemptible nodes.
    pub accepts_preemptible: bool,
    pub emulate: Emulate,
}

impl ClusterConfig {
    /// Constants for tests.
    #[cfg(test)]
    pub fn for_tests() -> Self {
        ClusterConfig {
            cluster_id: "local".into(),
            attempt_key: AttemptKey::new(b"key"),
            block_signer: BlockSigner::new("key".into(), true),
            accepts_preemptible: false,
            emulate: Emulate::None,
        }
    }

    pub fn system_user(&self) -> String {
        format!("{}-tpzed-000000000000000", self.cluster_id)
    }

    pub fn all_users_group(&self) -> String {
        format!("{}-j7d0g-fffffffffffffff", self.cluster_id)
    }

    /// A new uuid for a record of this resource.
    pub fn new_uuid(&self, resource: &Resource) -> String {
        const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let tail: String = (0..15)
            .map(|_| char::from(DIGITS[fastrand::usize(..DIGITS.len())]))
            .collect();
        format!("{}-{}-{tail}", self.cluster_id, resource.infix)
    }
}

//! The token of one attempt, as a value: act mints and revokes it, and the reconciler keeps it.

use arvados_client::{Token, TokenUuid};
use jiff::Timestamp;

/// The token of one attempt.
#[derive(Debug, Clone)]
pub struct AttemptToken {
    /// UUID of the token.
    pub uuid: TokenUuid,
    /// The secret token.
    pub token: Token,
    /// Expiry time of the token.
    pub expires_at: Option<Timestamp>,
}

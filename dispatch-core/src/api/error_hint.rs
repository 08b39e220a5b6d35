//! Adds a hint for administrators to the error of an API poll.
//!
//! Input: the error of server or network. Output: its text, with the remedy where that is known.

use std::fmt;

use arvados_client::Error;
use arvados_client::error::StatusCode;

/// An error of an API poll, formatted for administrators.
#[derive(Debug)]
pub struct WithHint<'a> {
    /// The error from server or network.
    pub error: &'a Error,
    /// Whether the token is at fault: it never worked, or it has been refused for long enough.
    pub is_persistent: bool,
}

impl fmt::Display for WithHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        match self.error.status().filter(|_| self.is_persistent) {
            Some(StatusCode::UNAUTHORIZED) => f.write_str(
                "; check that the dispatch token (--token-file or ARVADOS_API_TOKEN) belongs to this server and has not expired",
            ),
            Some(StatusCode::FORBIDDEN) => f.write_str(
                "; the dispatch token (--token-file or ARVADOS_API_TOKEN) must be an administrator's and allow all calls",
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::error::ApiError;

    use super::*;

    #[test]
    fn a_token_that_is_no_good_is_said_to_be_so() {
        let rows = [
            (StatusCode::UNAUTHORIZED, "has not expired"),
            (StatusCode::FORBIDDEN, "must be an administrator's"),
            (StatusCode::BAD_GATEWAY, "502 Bad Gateway: no (req-x)"),
        ];
        for (status, words) in rows {
            let error = Error::Api(ApiError {
                status,
                messages: vec!["no".into()],
                request_id: "req-x".into(),
                retry_after: None,
            });
            let hint = |lasts| {
                let error = &error;
                WithHint {
                    error,
                    is_persistent: lasts,
                }
                .to_string()
            };
            let (once, for_long) = (hint(false), hint(true));
            assert!(
                for_long.contains("no (req-x)") && for_long.contains(words),
                "{for_long}"
            );
            assert!(!once.contains("token"), "{once}");
        }
    }
}

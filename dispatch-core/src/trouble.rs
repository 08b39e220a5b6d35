//! What a person is told of a look at the API that failed: what the server or the network said, and what to do where that
//! is known.

use std::fmt;

use arvados_client::Error;
use arvados_client::error::StatusCode;

/// An error of a look, for people.
#[derive(Debug)]
pub struct Trouble<'a> {
    /// What the server or the network said.
    pub error: &'a Error,
    /// The token never worked, or has been refused for long enough: it is at fault.
    pub lasts: bool,
}

impl fmt::Display for Trouble<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        match self.error.status().filter(|_| self.lasts) {
            Some(StatusCode::UNAUTHORIZED) => f.write_str(
                "; is the dispatch token (--token-file, or ARVADOS_API_TOKEN) one of this server's, and has it not ended?",
            ),
            Some(StatusCode::FORBIDDEN) => f.write_str(
                "; the dispatch token (--token-file, or ARVADOS_API_TOKEN) must be an administrator's, for all calls",
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
            (StatusCode::UNAUTHORIZED, "has it not ended?"),
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
            let told = |lasts| {
                let error = &error;
                Trouble { error, lasts }.to_string()
            };
            let (once, for_long) = (told(false), told(true));
            assert!(
                for_long.contains("no (req-x)") && for_long.contains(words),
                "{for_long}"
            );
            assert!(!once.contains("token"), "{once}");
        }
    }
}

//! What a person is told of a look at the API that failed: what the server or the network said, and what to do where that
//! is known.

use std::fmt;

use arvados_client::Error;
use arvados_client::error::StatusCode;

/// An error of a look, for people.
#[derive(Debug)]
pub struct Trouble<'a>(pub &'a Error);

impl fmt::Display for Trouble<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        match self.0.status() {
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
            let told = Trouble(&error).to_string();
            assert!(
                told.contains("no (req-x)") && told.contains(words),
                "{told}"
            );
        }
    }
}

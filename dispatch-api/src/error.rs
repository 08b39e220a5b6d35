//! Errors of a request: their HTTP status and the messages that clients get.

use std::fmt;

use http::StatusCode;

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("Not logged in")]
    NotLoggedIn,
    #[error("user {0} is disabled, so no token of this user works; ask an administrator")]
    UserDisabled(String),
    #[error("Forbidden")]
    OutOfScope,
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
    #[error("{0}")]
    BadRequest(String),
    #[error("#<ArvadosModel::LockFailedError: {0}>")]
    LockFailed(String),
    #[error("the record has changed since it was read (its etag is now \"{current}\")")]
    Stale { current: String },
    #[error("the request body is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the JSON text has more than {limit} values")]
    TooManyValues { limit: usize },
    #[error("the request body arrived too slowly")]
    SlowBody,
    #[error("{0}")]
    TooManyRequests(String),
    #[error("the server is busy with other requests; try again in a second")]
    Busy,
    #[error("the search took too long and was ended; use more or narrower filters")]
    SlowQuery,
    #[error("{0}")]
    Gateway(String),
    #[error("insufficient storage")]
    NoVolume,
    #[error("context canceled")]
    Cancelled,
    #[error("the disk holding the server's state is full; nothing was changed")]
    DiskFull,
    #[error("block {0} on disk does not match its hash; it was moved aside")]
    CorruptBlock(String),
    #[error("block store error at {path}: {source}")]
    Blocks {
        path: String,
        source: std::io::Error,
    },
    #[error("database error: {0}")]
    Database(rusqlite::Error),
    #[error("a stored record cannot be read: {0}")]
    BadRecord(String),
    #[error(
        "the change could not be committed to the database and was rolled back; see the server's log"
    )]
    NotWritten,
    #[error("the server is shutting down")]
    Stopping,
}

pub type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    /// Status 422 with one message.
    pub fn invalid(text: impl Into<String>) -> Self {
        ApiError::Invalid(vec![text.into()])
    }

    /// Status 422 with all of these messages, unless there are none.
    pub fn reject_all(messages: Vec<String>) -> Result<()> {
        match messages.is_empty() {
            true => Ok(()),
            false => Err(ApiError::Invalid(messages)),
        }
    }

    /// Status 403, with the Rails class name that clients of Arvados know and what is needed.
    pub fn denied(reason: impl fmt::Display) -> Self {
        ApiError::Denied(format!("#<ArvadosModel::PermissionDeniedError: {reason}>"))
    }

    pub fn path_not_found() -> Self {
        ApiError::NotFound("Path not found".to_owned())
    }

    pub fn status(&self) -> StatusCode {
        match self {
            ApiError::NotLoggedIn => StatusCode::UNAUTHORIZED,
            ApiError::UserDisabled(_) | ApiError::OutOfScope | ApiError::Denied(_) => {
                StatusCode::FORBIDDEN
            }
            ApiError::NotFound(_) => StatusCode::NOT_FOUND,
            ApiError::Invalid(_) | ApiError::LockFailed(_) => StatusCode::UNPROCESSABLE_ENTITY,
            ApiError::BadRequest(_) => StatusCode::BAD_REQUEST,
            ApiError::Stale { .. } => StatusCode::PRECONDITION_FAILED,
            ApiError::TooLarge { .. } | ApiError::TooManyValues { .. } => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            ApiError::TooManyRequests(_) => StatusCode::TOO_MANY_REQUESTS,
            ApiError::SlowBody => StatusCode::REQUEST_TIMEOUT,
            ApiError::Busy | ApiError::Stopping | ApiError::SlowQuery | ApiError::Gateway(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ApiError::DiskFull | ApiError::NoVolume => StatusCode::INSUFFICIENT_STORAGE,
            ApiError::Cancelled
            | ApiError::CorruptBlock(_)
            | ApiError::Blocks { .. }
            | ApiError::Database(_)
            | ApiError::BadRecord(_)
            | ApiError::NotWritten => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The messages for the `errors` array of the response.
    pub fn messages(&self) -> Vec<String> {
        match self {
            ApiError::Invalid(messages) => messages.clone(),
            // SQLite's words are for the log.
            ApiError::Database(_) => vec!["the server cannot use its database; see its log".into()],
            other => vec![other.to_string()],
        }
    }

    /// Seconds after which the same request may succeed.
    pub fn retry_after(&self) -> Option<u32> {
        matches!(
            self,
            ApiError::Busy | ApiError::Stopping | ApiError::TooManyRequests(_)
        )
        .then_some(1)
    }
}

impl From<rusqlite::Error> for ApiError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => ApiError::DiskFull,
            Some(rusqlite::ErrorCode::OperationInterrupted) => ApiError::SlowQuery,
            _ => ApiError::Database(error),
        }
    }
}

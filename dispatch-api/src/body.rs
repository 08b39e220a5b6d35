//! Bodies of requests, read into memory within limits of size, time and all that is held at once.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::{HeaderMap, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::MAX_BODY_KIB;
use crate::edge::MAX_API_BODY;
use crate::error::{ApiError, Result};

/// A client must send something this often while it sends a body.
const BODY_PAUSE: Duration = Duration::from_secs(60);
/// How long the next piece of a refused body is waited for.
const DRAIN: Duration = Duration::from_secs(10);
/// Read a body of up to `limit` bytes into memory, within what all requests together may hold.
pub async fn read(
    room: &Arc<Semaphore>,
    headers: &HeaderMap,
    body: Body,
    limit: u64,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>)> {
    let too_large = || ApiError::TooLarge { limit };
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse::<u64>().ok());
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let most = match announced {
        Some(length) if length > limit => {
            drain(body).await;
            return Err(too_large());
        }
        Some(length) => length,
        None if chunked => limit,
        None => 0,
    };
    if most == 0 {
        return Ok((Bytes::new(), None));
    }
    let kib = u32::try_from(most.div_ceil(1024).min(MAX_BODY_KIB as u64)).unwrap_or(u32::MAX);
    let memory = tokio::time::timeout(BODY_PAUSE, room.clone().acquire_many_owned(kib))
        .await
        .map_err(|_| ApiError::Busy)?
        .map_err(|_| ApiError::Stopping)?;
    let mut pieces = body.into_data_stream();
    let mut read = BytesMut::with_capacity(usize::try_from(most.min(1 << 20)).unwrap_or(0));
    loop {
        let piece = tokio::time::timeout(BODY_PAUSE, pieces.next())
            .await
            .map_err(|_| ApiError::SlowBody(BODY_PAUSE.as_secs()))?;
        match piece {
            None => return Ok((read.freeze(), Some(memory))),
            Some(Ok(piece)) => {
                if (read.len() + piece.len()) as u64 > most {
                    return Err(too_large());
                }
                read.extend_from_slice(&piece);
            }
            Some(Err(problem)) => {
                return Err(ApiError::BadRequest(format!(
                    "the request body broke off: {problem}"
                )));
            }
        }
    }
}

/// Take some of a body that will be refused: a client in the middle of sending would not see the answer.
async fn drain(body: Body) {
    let mut pieces = body.into_data_stream();
    let mut left = MAX_API_BODY;
    // Whether all of it came does not matter: the answer is the same.
    while let Ok(Some(Ok(piece))) = tokio::time::timeout(DRAIN, pieces.next()).await {
        left = left.saturating_sub(piece.len() as u64);
        if left == 0 {
            break;
        }
    }
}

//! Reads request bodies into memory, whole or in pieces, within limits of size, rate and total
//! memory.
//!
//! Before the token of a request is checked, only [`MAX_ANONYMOUS_BYTES`] of its body are read, and
//! only where the token may be in the body. A body that is rejected is read and discarded for a
//! while after the response: a client that is still sending would otherwise lose the response.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::{HeaderMap, header};
use tokio::time::Instant;

use super::transfer_rate::WaitBudget;
use crate::error::{ApiError, Result};
use crate::json_text;
use crate::limits::{ClientShare, Limits, Permits};

/// Maximum number of bytes of a body that are read before its token is checked.
pub const MAX_ANONYMOUS_BYTES: usize = 8 << 10;
/// Timeout of reading these bytes.
const ANONYMOUS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size in bytes of a body that is not counted as memory of its client. The usual requests
/// of a user therefore never wait for his stalled uploads.
const MAX_FREE_BODY_BYTES: u64 = 16 << 10;
/// Maximum size in bytes of JSON whose values are not counted as memory of its client.
const MAX_FREE_JSON_BYTES: usize = 4 << 10;
/// Maximum time that a rejected body is discarded, in all and between two chunks.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);
const DISCARD_CHUNK_TIMEOUT: Duration = Duration::from_secs(5);

/// A request body that has been read partly or not at all.
pub struct UnreadBody {
    /// The bytes read so far.
    read: BytesMut,
    rest: BodyDataStream,
    announced: Option<u64>,
    is_complete: bool,
    /// Whether the client sends the body only when asked to.
    waits_for_continue: bool,
}

/// A body in memory, with the permits for that memory.
#[derive(Default)]
pub struct BufferedBody {
    pub bytes: Bytes,
    /// An upper bound of the memory that its JSON takes when it is parsed, if that is not free.
    pub parsed_bytes: usize,
    _permits: Option<Permits>,
    _parsed_permits: Option<Permits>,
}

impl BufferedBody {
    /// Waits for the memory that the JSON of this body takes when it is parsed.
    pub async fn acquire_parsed(&mut self, share: &ClientShare, is_form: bool) -> Result<()> {
        if self.bytes.len() <= MAX_FREE_JSON_BYTES {
            return Ok(());
        }
        let text = self.bytes.clone();
        let estimate = move || match is_form {
            true => json_text::parsed_bytes_of_form(&text),
            false => json_text::parsed_bytes(&text),
        };
        let bytes = tokio::task::spawn_blocking(estimate)
            .await
            .map_err(|_| ApiError::BadRecord("the estimate of a body panicked".into()))?;
        self.parsed_bytes = bytes;
        self._parsed_permits = match bytes {
            0 => None,
            bytes => Some(Limits::acquire_parsed(share, bytes as u64).await?),
        };
        Ok(())
    }
}

impl UnreadBody {
    pub fn new(headers: &HeaderMap, body: Body) -> Self {
        let announced = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok())
            .and_then(|length| length.parse().ok());
        let announced = match headers.contains_key(header::TRANSFER_ENCODING) {
            true => None,
            false => Some(announced.unwrap_or(0)),
        };
        UnreadBody {
            read: BytesMut::new(),
            rest: body.into_data_stream(),
            announced,
            is_complete: announced == Some(0),
            waits_for_continue: headers.contains_key(header::EXPECT),
        }
    }

    /// Reads the beginning of a body whose client is still unknown. Returns it and whether it is
    /// the whole body.
    pub async fn peek(&mut self) -> Result<(&[u8], bool)> {
        let until = Instant::now() + ANONYMOUS_TIMEOUT;
        while !self.is_complete && self.read.len() < MAX_ANONYMOUS_BYTES {
            tokio::time::timeout_at(until, self.read_chunk())
                .await
                .map_err(|_| ApiError::SlowBody)??;
        }
        Ok((&self.read, self.is_complete))
    }

    /// The whole body of a request that must be small, such as the form of a tunnel.
    pub async fn read_small(mut self) -> Result<Bytes> {
        match self.peek().await {
            Ok((read, true)) if read.len() <= MAX_ANONYMOUS_BYTES => Ok(self.read.freeze()),
            Ok(_) => {
                self.discard();
                Err(ApiError::TooLarge {
                    limit: MAX_ANONYMOUS_BYTES as u64,
                })
            }
            Err(problem) => Err(problem),
        }
    }

    /// The whole body, of up to `limit` bytes.
    pub async fn read(
        mut self,
        limits: &Limits,
        share: &ClientShare,
        limit: u64,
        timeout: Duration,
    ) -> Result<BufferedBody> {
        let expected = self.announced.unwrap_or(limit);
        let result = if expected > limit {
            Err(ApiError::TooLarge { limit })
        } else if expected <= MAX_FREE_BODY_BYTES {
            Ok(None)
        } else {
            limits.acquire_memory(share, expected).await.map(Some)
        };
        let result = match result {
            Ok(permits) => self.read_to_end(expected, timeout).await.map(|()| permits),
            Err(problem) => Err(problem),
        };
        match result {
            Ok(permits) => Ok(BufferedBody {
                bytes: self.read.freeze(),
                _permits: permits,
                ..BufferedBody::default()
            }),
            Err(problem) => {
                self.discard();
                Err(problem)
            }
        }
    }

    async fn read_to_end(&mut self, limit: u64, timeout: Duration) -> Result<()> {
        let mut budget = WaitBudget::new(timeout);
        if let Some(length) = self.announced {
            // Pages of this memory are in use only when they have been written.
            let missing = length.saturating_sub(self.read.len() as u64);
            self.read.reserve(usize::try_from(missing).unwrap_or(0));
        }
        while !self.is_complete {
            self.read_chunk_within(&mut budget).await?;
            if self.read.len() as u64 > limit {
                return Err(ApiError::TooLarge { limit });
            }
        }
        Ok(())
    }

    /// The announced size in bytes; `None` for a body of unknown size.
    pub fn announced(&self) -> Option<u64> {
        self.announced
    }

    /// The next bytes of the body: at least so many, or all that are left. Empty after the last.
    pub async fn read_piece(&mut self, bytes: usize, budget: &mut WaitBudget) -> Result<Bytes> {
        // Room for one chunk more.
        self.read.reserve(2 * bytes);
        while !self.is_complete && self.read.len() < bytes {
            self.read_chunk_within(budget).await?;
        }
        Ok(self.read.split().freeze())
    }

    async fn read_chunk_within(&mut self, budget: &mut WaitBudget) -> Result<()> {
        let began = Instant::now();
        let bytes = tokio::time::timeout(budget.left(), self.read_chunk())
            .await
            .map_err(|_| ApiError::SlowBody)??;
        budget.record(began.elapsed(), bytes);
        Ok(())
    }

    async fn read_chunk(&mut self) -> Result<usize> {
        // Whoever reads asks for it.
        self.waits_for_continue = false;
        match self.rest.next().await {
            None => {
                self.is_complete = true;
                Ok(0)
            }
            Some(Ok(chunk)) => {
                self.read.extend_from_slice(&chunk);
                Ok(chunk.len())
            }
            Some(Err(problem)) => Err(ApiError::BadRequest(format!(
                "the request body broke off: {problem}"
            ))),
        }
    }

    /// Discards the rest of the body beside the response. Nothing is kept in memory.
    pub fn discard(self) {
        if self.is_complete || self.waits_for_continue {
            return;
        }
        let mut rest = self.rest;
        tokio::spawn(tokio::time::timeout(DISCARD_TIMEOUT, async move {
            while let Ok(Some(Ok(_))) =
                tokio::time::timeout(DISCARD_CHUNK_TIMEOUT, rest.next()).await
            {}
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ClientKey;

    #[tokio::test(start_paused = true)]
    async fn the_values_of_json_count_as_memory_of_their_client() {
        let limits = Limits::new(4, 96 << 20);
        let greedy = limits.share(&ClientKey::User("greedy".into()));
        let other = limits.share(&ClientKey::User("other".into()));
        let acquire = |text: &str, is_form, share| {
            let mut body = BufferedBody {
                bytes: Bytes::from(text.to_owned()),
                ..BufferedBody::default()
            };
            async move { body.acquire_parsed(share, is_form).await.map(|()| body) }
        };
        let values = format!("[{}0]", "0,".repeat(20_000));
        let form = format!("filters=\"{}", "%5B%5D%2C".repeat(20_000));
        let held = acquire(&values, false, &greedy).await.unwrap();
        for (text, is_form) in [(&values, false), (&form, true)] {
            let refused = acquire(text, is_form, &greedy).await.err().unwrap();
            assert_eq!(refused.status().as_u16(), 429);
            assert!(acquire(text, is_form, &other).await.is_ok());
        }
        let text = format!("\"{}\"", ",".repeat(1 << 20));
        assert!(acquire(&text, false, &greedy).await.is_ok());
        drop(held);
        assert!(acquire(&values, false, &greedy).await.is_ok());
    }
}

//! A response body that is sent in small pieces, and that ends its request when it has been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

/// Maximum size in bytes of a piece. The next piece is taken when the client has received most of
/// the last one, so the body ends only when the response has nearly been received.
const MAX_PIECE_BYTES: usize = 64 << 10;

pub struct TrackedBody {
    inner: Body,
    /// The rest of a chunk that is sent in pieces.
    rest: Bytes,
    sent_bytes: u64,
    /// Called with the number of bytes that were sent.
    end: Option<Box<dyn FnOnce(u64) + Send>>,
}

impl TrackedBody {
    pub fn new(inner: Body, end: impl FnOnce(u64) + Send + 'static) -> Self {
        TrackedBody {
            inner,
            rest: Bytes::new(),
            sent_bytes: 0,
            end: Some(Box::new(end)),
        }
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.has_remaining() {
            match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            }
        }
        let length = self.rest.len().min(MAX_PIECE_BYTES);
        let piece = self.rest.split_to(length);
        self.sent_bytes += length as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        !self.rest.has_remaining() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end(self.sent_bytes);
        }
    }
}

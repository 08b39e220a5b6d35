//! A response body that is sent in small pieces, and that ends its request when it has been sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::{Buf, Bytes};
use http::StatusCode;
use http_body::{Frame, SizeHint};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::connections::BusyGuard;
use super::request_context::RequestContext;
use crate::app::App;
use crate::clock;
use crate::limits::Permits;
use crate::request_log::redact::redact;

/// Maximum size in bytes of a piece. The next piece is taken when the client has received most of
/// the last one, so the body ends only when the response has nearly been received.
const MAX_PIECE_BYTES: usize = 64 << 10;

/// What a request holds until its response has been sent.
#[derive(Default)]
pub struct HeldByRequest {
    pub busy: Option<BusyGuard>,
    pub permit: Option<OwnedSemaphorePermit>,
    pub memory: Option<Permits>,
}

pub struct TrackedBody {
    inner: Body,
    /// The rest of a chunk that is sent in pieces.
    rest: Bytes,
    sent_bytes: u64,
    status: StatusCode,
    /// What the access log says, and what is released after the response.
    request: RequestContext,
    app: Arc<App>,
}

impl TrackedBody {
    pub fn of(response: Response, request: RequestContext, app: Arc<App>) -> Response {
        let status = response.status();
        response.map(|inner| {
            Body::new(TrackedBody {
                inner,
                rest: Bytes::new(),
                sent_bytes: 0,
                status,
                request,
                app,
            })
        })
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
        let Some(log) = &self.app.access_log else {
            return;
        };
        let request = &self.request;
        log.record(json!({
            "time": clock::now(),
            "request": request.id,
            "address": request.remote(),
            "user": request.user,
            "method": request.method.as_str(),
            "path": redact(&request.path),
            "status": self.status.as_u16(),
            "ms": request.started.elapsed().as_millis() as u64,
            "bytes": self.sent_bytes,
        }));
    }
}

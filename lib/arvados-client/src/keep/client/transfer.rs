//! One request to one Keep service, with a timeout for transfers without progress.

use std::time::Duration;

use futures_util::stream;
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use md5::{Digest, Md5};
use reqwest::{Body, RequestBuilder, Response};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Inner;
use super::content::Content;
use crate::client::retry_after;
use crate::error::{messages, with_causes};
use crate::keep::error::{Cause, Failure};
use crate::keep::service::Service;
use crate::locator::{BlockHash, Locator};

const DESIRED_REPLICAS: HeaderName = HeaderName::from_static("x-keep-desired-replicas");
const REPLICAS_STORED: HeaderName = HeaderName::from_static("x-keep-replicas-stored");
const STORAGE_CLASSES: HeaderName = HeaderName::from_static("x-keep-storage-classes");
const CLASSES_CONFIRMED: HeaderName = HeaderName::from_static("x-keep-storage-classes-confirmed");

/// Timeout of a whole transfer, even with progress.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum number of bytes read of an error or confirmation.
const MAX_REPLY_BYTES: usize = 16 << 10;

/// Confirmation of a service that stored a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredReply {
    pub locator: Locator,
    pub replicas: u32,
    /// Copies by storage class.
    pub classes: Vec<(String, u32)>,
}

impl Inner {
    /// Reads a block from one service into `buffer` and verifies it.
    pub(super) async fn get_from(
        &self,
        service: &Service,
        locator: &Locator,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let fails = |cause: Cause| failure(service, cause);
        let stall = self.options.stall_timeout;
        let _connection = self.connections.acquire().await;
        let request = self.request(reqwest::Method::GET, service, &locator.to_string());
        let sent = timeout(stall, request.send()).await;
        let response = sent.map_err(|_| fails(Cause::Stalled(stall)))?;
        let mut response = success(response.map_err(|e| fails(transport(e)))?, stall)
            .await
            .map_err(fails)?;

        buffer.clear();
        let mut digest = Md5::new();
        loop {
            let chunk = timeout(stall, response.chunk()).await;
            let chunk = chunk.map_err(|_| fails(Cause::Stalled(stall)))?;
            let Some(chunk) = chunk.map_err(|e| fails(transport(e)))? else {
                break;
            };
            if (buffer.len() + chunk.len()) as u64 > locator.size {
                let got = format!("more than {} bytes", locator.size);
                return Err(fails(Cause::WrongContent { got }));
            }
            digest.update(&chunk);
            buffer.extend_from_slice(&chunk);
        }
        let got = Locator::new(BlockHash::from_digest(digest), buffer.len() as u64);
        if got != locator.stripped() {
            let got = got.to_string();
            return Err(fails(Cause::WrongContent { got }));
        }
        Ok(())
    }

    /// Stores a block in one service.
    pub(super) async fn put_to(
        &self,
        service: &Service,
        locator: &Locator,
        data: Content,
    ) -> Result<StoredReply, Failure> {
        let fails = |cause: Cause| failure(service, cause);
        let stall = self.options.stall_timeout;
        let _connection = self.connections.acquire().await;
        let mut request = self
            .request(reqwest::Method::PUT, service, &locator.hash.to_string())
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, data.len())
            .header(DESIRED_REPLICAS, self.options.replicas);
        if !self.options.storage_classes.is_empty() {
            request = request.header(STORAGE_CLASSES, self.options.storage_classes.join(", "));
        }
        let response = send_with_stall_timeout(request, data, stall)
            .await
            .map_err(fails)?;
        let response = success(response, stall).await.map_err(fails)?;
        let headers = response.headers().clone();
        let reply = read_reply(response, stall).await.map_err(fails)?;
        let stored = Locator::parse(reply.trim())
            .ok()
            .filter(|confirmed| confirmed.stripped() == *locator);
        let Some(stored) = stored else {
            let text = reply.chars().take(80).collect();
            return Err(fails(Cause::WrongReply { text }));
        };
        Ok(StoredReply {
            locator: stored,
            replicas: replicas_stored(&headers),
            classes: classes_confirmed(&headers),
        })
    }

    fn request(&self, method: reqwest::Method, service: &Service, path: &str) -> RequestBuilder {
        let mut url = service.root().clone();
        url.set_path(&format!("{}{path}", url.path()));
        let request = self.http.request(method, url).timeout(TRANSFER_TIMEOUT);
        match HeaderValue::try_from(format!("Bearer {}", self.token.expose())) {
            Ok(mut value) => {
                value.set_sensitive(true);
                request.header(AUTHORIZATION, value)
            }
            // Such a token cannot be valid; the service will refuse the request.
            Err(_) => request,
        }
    }
}

fn failure(service: &Service, cause: Cause) -> Failure {
    Failure {
        service: service.label(),
        cause,
    }
}

/// The error and its causes without the URL, which may contain a signature.
fn transport(error: reqwest::Error) -> Cause {
    Cause::Transport(with_causes(&error.without_url()))
}

/// Sends a body in steps and waits for the reply. Fails when neither makes progress for `stall`.
async fn send_with_stall_timeout(
    request: RequestBuilder,
    data: Content,
    stall: Duration,
) -> Result<Response, Cause> {
    let (progress, mut moved) = watch::channel(());
    let steps = stream::unfold((data, 0, progress), |(data, at, progress)| async move {
        progress.send_replace(());
        if at >= data.len() {
            return None;
        }
        let step = data.step(at).await;
        // The stream ends after an error.
        let next = step.as_ref().map_or(data.len(), |step| at + step.len());
        Some((step, (data, next, progress)))
    });
    let send = request.body(Body::wrap_stream(steps)).send();
    tokio::pin!(send);
    let mut uploading = true;
    loop {
        tokio::select! {
            answer = &mut send => return answer.map_err(transport),
            // An error means that the body was sent completely: only the reply is missing.
            step = moved.changed(), if uploading => uploading = step.is_ok(),
            () = tokio::time::sleep(stall) => return Err(Cause::Stalled(stall)),
        }
    }
}

/// The response if it is a success.
async fn success(response: Response, stall: Duration) -> Result<Response, Cause> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let retry_after = retry_after(response.headers());
    // The text only explains; the status decides.
    let text = read_reply(response, stall).await.unwrap_or_default();
    // Keep services answer in plain text, API servers in JSON.
    let text = messages(text.as_bytes()).join("; ");
    let line = text.lines().next().unwrap_or_default().trim();
    Err(Cause::Status {
        status: status.as_u16(),
        text: line.chars().take(200).collect(),
        retry_after,
    })
}

/// A short body as text.
async fn read_reply(mut response: Response, stall: Duration) -> Result<String, Cause> {
    let mut body = Vec::new();
    while body.len() < MAX_REPLY_BYTES {
        let chunk = timeout(stall, response.chunk()).await;
        let chunk = chunk.map_err(|_| Cause::Stalled(stall))?;
        match chunk.map_err(transport)? {
            Some(chunk) => {
                body.extend_from_slice(&chunk[..chunk.len().min(MAX_REPLY_BYTES - body.len())])
            }
            None => break,
        }
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Number of copies that the service made; one if the header is missing.
fn replicas_stored(headers: &HeaderMap) -> u32 {
    let header = headers.get(REPLICAS_STORED);
    header
        .and_then(|v| v.to_str().ok()?.trim().parse().ok())
        .unwrap_or(1)
}

/// `default=1, hot=2`.
fn classes_confirmed(headers: &HeaderMap) -> Vec<(String, u32)> {
    let values = headers.get_all(CLASSES_CONFIRMED).into_iter();
    let items = values
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','));
    items
        .filter_map(|item| {
            let (class, copies) = item.split_once('=')?;
            Some((class.trim().to_owned(), copies.trim().parse().ok()?))
        })
        .collect()
}

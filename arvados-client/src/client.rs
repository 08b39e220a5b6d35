//! One connection pool to one API server, as one token.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backon::Retryable;
use http::method::InvalidMethod;
use http::{HeaderName, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::error::{ApiError, Error, messages};
use crate::filter::Query;
use crate::retry::{self, Effect, RefusalTimer};
use crate::token::Token;

/// Longest query that is sent in the URL; a longer one travels as a form (servers limit the request line).
const LONGEST_URL_QUERY: usize = 4000;
/// Largest answer that is read; a page of 1000 whole records stays well below.
const LARGEST_ANSWER: usize = 256 << 20;

/// A client. Cheap to clone; clones share connections.
///
/// A 401 that comes after the server accepted the token is asked again for [`retry::REFUSAL_WINDOW`], within the
/// budget of the call, before it is returned.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    endpoint: Arc<Endpoint>,
    /// Whether the server has accepted the token.
    accepted: Arc<AtomicBool>,
}

/// One call, described; [`Client::send`] makes it.
pub struct Call {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
    headers: Vec<(HeaderName, String)>,
    effect: Effect,
    budget: Option<Duration>,
    known_record: bool,
}

/// Without the body: it may hold tokens (`containers/bulk_lock`).
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, path, .. } = self;
        write!(f, "{method} {path}")
    }
}

impl Call {
    /// GET of `path` below `/arvados/v1/`.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path.into(), Effect::Repeatable)
    }

    /// PUT: writing the same again changes nothing.
    pub fn put(path: impl Into<String>, body: Value) -> Self {
        Self {
            body: Some(body),
            ..Self::new(Method::PUT, path.into(), Effect::Repeatable)
        }
    }

    /// POST: never repeated when it may have taken effect.
    pub fn post(path: impl Into<String>, body: Value) -> Self {
        Self {
            body: Some(body),
            ..Self::new(Method::POST, path.into(), Effect::Once)
        }
    }

    /// DELETE: gone is gone.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path.into(), Effect::Repeatable)
    }

    /// PROPFIND of the files below a path, for the parts of the API that speak WebDAV.
    pub(crate) fn list_files(path: impl Into<String>) -> Result<Self, InvalidMethod> {
        let method = Method::from_bytes(b"PROPFIND")?;
        let call = Self::new(method, path.into(), Effect::Repeatable);
        Ok(call.header(HeaderName::from_static("depth"), "1"))
    }

    fn new(method: Method, path: String, effect: Effect) -> Self {
        Self {
            method,
            path,
            query: Vec::new(),
            body: None,
            headers: Vec::new(),
            effect,
            budget: None,
            known_record: false,
        }
    }

    /// With listing parameters.
    pub fn query(mut self, query: &Query) -> Self {
        self.query = query.pairs();
        self
    }

    /// With one more parameter.
    pub fn param(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.query.push((key, value.into()));
        self
    }

    /// Only if the record is still the one with this etag.
    pub fn if_match(mut self, etag: &str) -> Self {
        if !etag.is_empty() {
            // A repeat after a lost answer would see 412 and look like a lost race.
            self.effect = Effect::Once;
            return self.header(http::header::IF_MATCH, format!("\"{etag}\""));
        }
        self
    }

    /// With one more header.
    pub(crate) fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// How long this call may be repeated, instead of the endpoint's budget.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Making it twice is no harm, so it is also repeated when its answer was lost.
    pub fn repeatable(mut self) -> Self {
        self.effect = Effect::Repeatable;
        self
    }

    /// The token could read this record before: 403 and 404 are asked again for [`retry::REFUSAL_WINDOW`], too.
    pub fn known_record(mut self) -> Self {
        self.known_record = true;
        self
    }

    fn label(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

impl Client {
    /// Builds the pool. Nothing is sent yet.
    pub fn new(endpoint: Endpoint) -> Result<Self, Error> {
        let tls = crate::tls::config(&endpoint)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .user_agent(concat!("arvados-client/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(20).min(endpoint.call_timeout))
            .pool_idle_timeout(Duration::from_secs(20))
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|source| Error::Connect {
                host: endpoint.host.clone(),
                source,
            })?;
        Ok(Self {
            http,
            endpoint: Arc::new(endpoint),
            accepted: Arc::default(),
        })
    }

    /// The same server and connections, as somebody else.
    pub fn with_token(&self, token: Token) -> Self {
        Self {
            accepted: Arc::default(),
            ..self.at(Endpoint {
                token,
                ..(*self.endpoint).clone()
            })
        }
    }

    /// The caller knows that the server accepted the token before, in another process.
    pub fn with_accepted_token(self) -> Self {
        self.accepted.store(true, Ordering::Relaxed);
        self
    }

    /// The same, and calls are repeated for so long only: for who asks again by himself, and wants to know of a failure.
    pub fn with_retry_budget(&self, retry_budget: Duration) -> Self {
        self.at(Endpoint {
            retry_budget,
            ..(*self.endpoint).clone()
        })
    }

    /// The same, and refusals of what worked before are returned after this time: none for a caller that has a
    /// [`RefusalTimer`] of its own.
    pub fn with_refusal_window(&self, refusal_window: Duration) -> Self {
        self.at(Endpoint {
            refusal_window,
            ..(*self.endpoint).clone()
        })
    }

    fn at(&self, endpoint: Endpoint) -> Self {
        Self {
            http: self.http.clone(),
            endpoint: Arc::new(endpoint),
            accepted: self.accepted.clone(),
        }
    }

    /// Where and who.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The connections, for Keep.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// Makes a call, repeated within its budget as its effect allows.
    pub async fn send<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let body = self.send_raw(&call).await?;
        serde_json::from_slice(&body).map_err(|source| Error::Undecodable {
            host: self.endpoint.host.clone(),
            call: call.label(),
            source,
        })
    }

    /// The body of the answer, whatever it is in; repeated like [`Client::send`].
    pub(crate) async fn send_raw(&self, call: &Call) -> Result<Vec<u8>, Error> {
        let budget = call.budget.unwrap_or(self.endpoint.retry_budget);
        let began = Instant::now();
        let outage_budget = self
            .endpoint
            .outage_budget
            .map_or(budget, |outage| outage.min(budget));
        let mut refused = RefusalTimer::new(self.endpoint.refusal_window);
        let may_pass = |error: &Error| {
            let accepted = self.accepted.load(Ordering::Relaxed);
            retry::may_pass(error, accepted, call.known_record)
        };
        (|| self.attempt(call))
            .retry(retry::waits(budget))
            .when(|error| retry::may_retry(call.effect, error) || may_pass(error))
            .adjust(|error, wait| {
                let wait = wait?.max(error.retry_after().unwrap_or_default());
                let budget = match may_pass(error) {
                    true => budget,
                    false => outage_budget,
                };
                let now = Instant::now();
                (now + wait < began + budget && !refused.has_failed(error, now)).then_some(wait)
            })
            .notify(
                |error, wait| tracing::debug!(call = %call.label(), %error, ?wait, "trying again"),
            )
            .await
    }

    async fn attempt(&self, call: &Call) -> Result<Vec<u8>, Error> {
        let request_id = request_id();
        let mut response = self.open(call, &request_id).await?;
        self.body(call, &request_id, &mut response).await
    }

    /// Makes a call once. The answer is a success, and its body is yet to be read.
    pub(crate) async fn open_once(&self, call: &Call) -> Result<reqwest::Response, Error> {
        self.open(call, &request_id()).await
    }

    async fn open(&self, call: &Call, request_id: &str) -> Result<reqwest::Response, Error> {
        let host = &self.endpoint.host;
        let url = match call.path.starts_with('/') {
            true => format!("https://{host}{}", call.path),
            false => format!("https://{host}/arvados/v1/{}", call.path),
        };
        let mut request = self.http.request(call.method.clone(), &url);
        let long = call
            .query
            .iter()
            .map(|(k, v)| k.len() + v.len() + 2)
            .sum::<usize>()
            > LONGEST_URL_QUERY;
        if long && call.method == Method::GET {
            let mut form = call.query.clone();
            form.push(("_method", "GET".to_owned()));
            request = self.http.post(&url).form(&form);
        } else if !call.query.is_empty() {
            request = request.query(&call.query);
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        let mut response = request
            .bearer_auth(self.endpoint.token.expose())
            .header("X-Request-Id", request_id)
            .timeout(self.endpoint.call_timeout)
            .send()
            .await
            .map_err(|source| self.broken(source))?;
        let status = response.status();
        if status.is_success() {
            self.accepted.store(true, Ordering::Relaxed);
            return Ok(response);
        }
        let retry_after = retry_after(&response);
        let body = self.body(call, request_id, &mut response).await?;
        Err(Error::Api(ApiError {
            status,
            messages: messages(&body),
            request_id: request_id.to_owned(),
            retry_after,
        }))
    }

    async fn body(
        &self,
        call: &Call,
        request_id: &str,
        response: &mut reqwest::Response,
    ) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|source| self.broken(source))?
        {
            body.extend_from_slice(&chunk);
            if body.len() > LARGEST_ANSWER {
                let messages = vec![format!(
                    "the answer to {} is larger than {} MiB",
                    call.label(),
                    LARGEST_ANSWER >> 20
                )];
                return Err(Error::Api(ApiError {
                    status: StatusCode::PAYLOAD_TOO_LARGE,
                    messages,
                    request_id: request_id.to_owned(),
                    retry_after: None,
                }));
            }
        }
        Ok(body)
    }

    pub(crate) fn broken(&self, source: reqwest::Error) -> Error {
        let host = self.endpoint.host.clone();
        // The URL may hold filters, never secrets, but it makes the sentence unreadable.
        let source = source.without_url();
        match source.is_connect() {
            true => Error::Connect { host, source },
            false => Error::Interrupted { host, source },
        }
    }
}

/// `req-` and 20 characters, as the API's own clients make them.
pub(crate) fn request_id() -> String {
    let id: String = (0..20).map(|_| fastrand::char('a'..='z')).collect();
    format!("req-{id}")
}

/// `Retry-After` in seconds; the date form is rounded to "in a moment" by leaving it out.
fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let text = response
        .headers()
        .get(http::header::RETRY_AFTER)?
        .to_str()
        .ok()?;
    text.trim().parse::<u64>().ok().map(Duration::from_secs)
}

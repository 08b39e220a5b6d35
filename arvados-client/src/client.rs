//! One connection pool to one API server, as one token.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::Retryable;
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::error::{ApiError, Error, messages};
use crate::filter::Query;
use crate::retry::{self, Effect};
use crate::token::Token;

/// Longest query that is sent in the URL; a longer one travels as a form (servers limit the request line).
const LONGEST_URL_QUERY: usize = 4000;
/// Largest answer that is read; a page of 1000 whole records stays well below.
const LARGEST_ANSWER: usize = 256 << 20;

/// A client. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    endpoint: Arc<Endpoint>,
}

/// One call, described; [`Client::send`] makes it.
pub struct Call {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
    if_match: Option<String>,
    effect: Effect,
    budget: Option<Duration>,
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

    fn new(method: Method, path: String, effect: Effect) -> Self {
        Self {
            method,
            path,
            query: Vec::new(),
            body: None,
            if_match: None,
            effect,
            budget: None,
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
            self.if_match = Some(format!("\"{etag}\""));
            // A repeat after a lost answer would see 412 and look like a lost race.
            self.effect = Effect::Once;
        }
        self
    }

    /// How long this call may be repeated, instead of the endpoint's budget.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
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
        })
    }

    /// The same server and connections, as somebody else.
    pub fn with_token(&self, token: Token) -> Self {
        self.at(Endpoint {
            token,
            ..(*self.endpoint).clone()
        })
    }

    /// The same, and calls are repeated for so long only: for who asks again by himself, and wants to know of a failure.
    pub fn with_retry_budget(&self, retry_budget: Duration) -> Self {
        self.at(Endpoint {
            retry_budget,
            ..(*self.endpoint).clone()
        })
    }

    fn at(&self, endpoint: Endpoint) -> Self {
        Self {
            http: self.http.clone(),
            endpoint: Arc::new(endpoint),
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

    async fn send_raw(&self, call: &Call) -> Result<Vec<u8>, Error> {
        let budget = call.budget.unwrap_or(self.endpoint.retry_budget);
        let deadline = Instant::now() + budget;
        (|| self.attempt(call))
            .retry(retry::waits(budget))
            .when(|error| retry::may_retry(call.effect, error))
            .adjust(|error, wait| {
                let wait = wait?.max(error.retry_after().unwrap_or_default());
                (Instant::now() + wait < deadline).then_some(wait)
            })
            .notify(
                |error, wait| tracing::debug!(call = %call.label(), %error, ?wait, "trying again"),
            )
            .await
    }

    async fn attempt(&self, call: &Call) -> Result<Vec<u8>, Error> {
        let request_id = request_id();
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
        if let Some(etag) = &call.if_match {
            request = request.header(http::header::IF_MATCH, etag);
        }
        let mut response = request
            .bearer_auth(self.endpoint.token.expose())
            .header("X-Request-Id", &request_id)
            .timeout(self.endpoint.call_timeout)
            .send()
            .await
            .map_err(|source| self.broken(source))?;
        let status = response.status();
        let retry_after = retry_after(&response);
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
                    request_id,
                    retry_after: None,
                }));
            }
        }
        if status.is_success() {
            return Ok(body);
        }
        Err(Error::Api(ApiError {
            status,
            messages: messages(&body),
            request_id,
            retry_after,
        }))
    }

    fn broken(&self, source: reqwest::Error) -> Error {
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
fn request_id() -> String {
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

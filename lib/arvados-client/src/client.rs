//! A client of one API server with one token: sends calls, retries them, and decodes replies.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backon::Retryable;
use http::{HeaderMap, HeaderName, Method, StatusCode};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::error::{ApiError, Error, messages};
use crate::filter::Query;
use crate::proxy::Proxies;
use crate::retry::{self, Idempotency, RefusalTimer};
use crate::token::Token;

/// Maximum length of a query in the URL. A longer one is sent as a form, because servers limit the
/// request line.
const MAX_URL_QUERY: usize = 4000;
/// Maximum size of a response. A page of 1000 complete records is far smaller.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// Time after which a call is slow: longer than a command of a person tries to reach a server.
const SLOW_CALL: Duration = Duration::from_secs(6);

/// A client. Clones are cheap and share connections.
///
/// A 401 after the server accepted the token may be transient. It is retried for the refusal window
/// of the endpoint, within the budget of the call.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    endpoint: Arc<Endpoint>,
    /// Address of the proxy to the server.
    proxy: Option<Arc<str>>,
    /// Whether the server has accepted the token before.
    accepted: Arc<AtomicBool>,
}

/// Description of a call, for [`Client::send`].
pub struct Call {
    method: Method,
    pub(crate) path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
    headers: Vec<(HeaderName, String)>,
    idempotency: Idempotency,
    budget: Option<Duration>,
    known_record: bool,
}

/// Omits the body, which may contain tokens (`containers/bulk_lock`).
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, path, .. } = self;
        write!(f, "{method} {path}")
    }
}

impl Call {
    /// GET of `path` below `/arvados/v1/`.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path.into(), Idempotency::Idempotent)
    }

    /// PUT, which is idempotent.
    pub fn put(path: impl Into<String>, body: Value) -> Self {
        Self {
            body: Some(body),
            ..Self::new(Method::PUT, path.into(), Idempotency::Idempotent)
        }
    }

    /// POST, never repeated if it may have had an effect.
    pub fn post(path: impl Into<String>, body: Value) -> Self {
        Self {
            body: Some(body),
            ..Self::new(Method::POST, path.into(), Idempotency::Once)
        }
    }

    /// DELETE, which is idempotent.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path.into(), Idempotency::Idempotent)
    }

    /// PROPFIND of the files below a path, for the parts of the API that are WebDAV.
    pub(crate) fn list_files(path: String) -> Self {
        let method = Method::from_bytes(b"PROPFIND").expect("letters are a method");
        let call = Self::new(method, path, Idempotency::Idempotent);
        call.header(HeaderName::from_static("depth"), "1")
    }

    fn new(method: Method, path: String, idempotency: Idempotency) -> Self {
        Self {
            method,
            path,
            query: Vec::new(),
            body: None,
            headers: Vec::new(),
            idempotency,
            budget: None,
            known_record: false,
        }
    }

    /// Sets the listing parameters.
    pub fn query(mut self, query: &Query) -> Self {
        self.query = query.pairs();
        self
    }

    /// Makes the call only if the record still has this etag.
    pub fn if_match(mut self, etag: &str) -> Self {
        if !etag.is_empty() {
            // A retry after a lost reply would get 412, which looks like a lost race.
            self.idempotency = Idempotency::Once;
            return self.header(http::header::IF_MATCH, format!("\"{etag}\""));
        }
        self
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sets the retry budget of this call, instead of that of the endpoint.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Marks the call as idempotent, so that it is also retried if its reply was lost.
    pub fn repeatable(mut self) -> Self {
        self.idempotency = Idempotency::Idempotent;
        self
    }

    /// Marks the record as readable before, so that 403 and 404 are retried for the refusal window,
    /// too.
    pub fn known_record(mut self) -> Self {
        self.known_record = true;
        self
    }

    pub(crate) fn label(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

impl Client {
    /// Makes a client. Nothing is sent yet.
    pub fn new(endpoint: Endpoint) -> Result<Self, Error> {
        let tls = crate::tls::config(&endpoint)?;
        let proxies = Proxies::from_env(endpoint.is_direct.then(|| endpoint.host_name()));
        let proxy = proxies.proxy_for(&endpoint.host);
        let http = proxies
            .apply(reqwest::Client::builder())
            .tls_backend_preconfigured(tls)
            .user_agent(concat!("arvados-client/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(20).min(endpoint.call_timeout))
            .pool_idle_timeout(Duration::from_secs(20))
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|source| Error::Connect {
                host: endpoint.host.clone(),
                proxy: proxy.clone(),
                source,
            })?;
        Ok(Self {
            http,
            proxy: proxy.map(Arc::from),
            endpoint: Arc::new(endpoint),
            accepted: Arc::default(),
        })
    }

    /// The same server and connections with another token.
    pub fn with_token(&self, token: Token) -> Self {
        Self {
            accepted: Arc::default(),
            ..self.with(|endpoint| endpoint.token = token)
        }
    }

    /// Marks the token as accepted before, in another process.
    pub fn with_accepted_token(self) -> Self {
        self.accepted.store(true, Ordering::Relaxed);
        self
    }

    /// The same client with another retry budget, for callers that retry themselves.
    pub fn with_retry_budget(&self, retry_budget: Duration) -> Self {
        self.with(|endpoint| endpoint.retry_budget = retry_budget)
    }

    /// The same client with another refusal window: zero for callers with their own
    /// [`RefusalTimer`].
    pub fn with_refusal_window(&self, refusal_window: Duration) -> Self {
        self.with(|endpoint| endpoint.refusal_window = refusal_window)
    }

    fn with(&self, change: impl FnOnce(&mut Endpoint)) -> Self {
        let mut client = self.clone();
        change(Arc::make_mut(&mut client.endpoint));
        client
    }

    /// Address, token and settings.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The HTTP client, for Keep.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// Sends a call. Retries it within its budget, as its idempotency allows.
    pub async fn send<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let body = self.send_raw(&call).await?;
        serde_json::from_slice(&body).map_err(|source| self.undecodable(call.label(), source))
    }

    /// Fetches a record.
    pub async fn get<T: DeserializeOwned>(&self, path: impl Into<String>) -> Result<T, Error> {
        self.send(Call::get(path)).await
    }

    /// Sends a call whose reply does not matter.
    pub(crate) async fn done(&self, call: Call) -> Result<(), Error> {
        self.send::<IgnoredAny>(call).await.map(drop)
    }

    pub(crate) fn undecodable(&self, call: String, source: serde_json::Error) -> Error {
        let host = self.endpoint.host.clone();
        Error::Undecodable { host, call, source }
    }

    /// Sends a call like [`Client::send`] and returns the body.
    pub(crate) async fn send_raw(&self, call: &Call) -> Result<Vec<u8>, Error> {
        let mut sending = pin!(self.send_with_retries(call));
        if let Some(notice) = self.endpoint.slow_notice {
            match timeout(SLOW_CALL, sending.as_mut()).await {
                Ok(sent) => return sent,
                Err(_) => notice(&self.endpoint.host),
            }
        }
        sending.await
    }

    async fn send_with_retries(&self, call: &Call) -> Result<Vec<u8>, Error> {
        let budget = call.budget.unwrap_or(self.endpoint.retry_budget);
        let began = Instant::now();
        let outage = self.endpoint.outage_budget;
        let outage_budget = outage.map_or(budget, |outage| outage.min(budget));
        let mut refusals = RefusalTimer::new(self.endpoint.refusal_window);
        let may_be_transient = |error: &Error| {
            let accepted = self.accepted.load(Ordering::Relaxed);
            retry::may_be_transient(error, accepted, call.known_record)
        };
        (|| self.attempt(call))
            .retry(retry::backoff(budget))
            .when(|error| retry::may_retry(call.idempotency, error) || may_be_transient(error))
            .adjust(|error, wait| {
                let wait = wait?.max(error.retry_after().unwrap_or_default());
                let budget = if may_be_transient(error) { budget } else { outage_budget };
                let now = Instant::now();
                (now + wait < began + budget && !refusals.record_failure(error, now)).then_some(wait)
            })
            .notify(
                |error, wait| tracing::debug!(call = %call.label(), %error, ?wait, "retrying the call"),
            )
            .await
    }

    async fn attempt(&self, call: &Call) -> Result<Vec<u8>, Error> {
        let request_id = request_id();
        let mut response = self.open(call, &request_id).await?;
        self.body(call, &request_id, &mut response).await
    }

    /// Sends a call once. Returns a successful response whose body is not read yet.
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
        let lengths = call.query.iter().map(|(k, v)| k.len() + v.len() + 2);
        let is_long = lengths.sum::<usize>() > MAX_URL_QUERY;
        if is_long && call.method == Method::GET {
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
            .map_err(|e| self.connection_error(e))?;
        let status = response.status();
        if status.is_success() {
            self.accepted.store(true, Ordering::Relaxed);
            return Ok(response);
        }
        let retry_after = retry_after(response.headers());
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
        loop {
            let chunk = response.chunk().await;
            let Some(chunk) = chunk.map_err(|e| self.connection_error(e))? else {
                return Ok(body);
            };
            body.extend_from_slice(&chunk);
            if body.len() > MAX_RESPONSE_BYTES {
                let messages = vec![format!(
                    "the answer to {} is larger than {} MiB",
                    call.label(),
                    MAX_RESPONSE_BYTES >> 20
                )];
                return Err(Error::Api(ApiError {
                    status: StatusCode::PAYLOAD_TOO_LARGE,
                    messages,
                    request_id: request_id.to_owned(),
                    retry_after: None,
                }));
            }
        }
    }

    pub(crate) fn connection_error(&self, source: reqwest::Error) -> Error {
        let host = self.endpoint.host.clone();
        // The URL has no secrets, but makes the message unreadable.
        let source = source.without_url();
        match source.is_connect() {
            true => Error::Connect {
                host,
                proxy: self.proxy.as_deref().map(str::to_owned),
                source,
            },
            false => Error::Interrupted { host, source },
        }
    }
}

/// A request id with the prefix of those of the SDKs.
pub(crate) fn request_id() -> String {
    format!("req-{}", uuid::Uuid::new_v4())
}

/// `Retry-After` in seconds. The form with a date is ignored.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

//! The server of one test, and clients of it.

use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

use dispatch_api::{Emulate, Options, Server};
use reqwest::{Certificate, Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long a test waits for one step before it fails: no promise, and more than an overloaded
/// machine needs.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(240);

/// A running server over a temporary directory.
pub struct Fixture {
    pub server: Server,
    pub directory: TempDir,
    /// The token of the dispatchers.
    pub admin: Api,
}

/// A client with one token.
#[derive(Clone)]
pub struct Api {
    client: Client,
    pub host: String,
    pub token: String,
}

/// A response that was read to the end.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub body: Value,
    pub etag: Option<String>,
}

impl Response {
    /// The body of a successful response.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// The first error of a rejection with this status.
    #[track_caller]
    pub fn error_of(self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        self.body["errors"][0].as_str().unwrap_or("").to_owned()
    }
}

pub fn client_trusting(certificate: &Path) -> Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        rustls::crypto::ring::default_provider()
            .install_default()
            .unwrap();
    });
    let pem = std::fs::read(certificate).unwrap();
    Client::builder()
        .tls_certs_only([Certificate::from_pem(&pem).unwrap()])
        .build()
        .unwrap()
}

impl Fixture {
    pub async fn new() -> Fixture {
        Fixture::at(tempfile::tempdir().unwrap()).await
    }

    /// A server that emulates Arvados.
    #[allow(dead_code, reason = "the benchmark measures this server as itself")]
    pub async fn as_arvados() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::new(directory.path().join("state"));
        options.emulate = Emulate::Arvados3;
        Fixture::with(directory, options).await
    }

    #[allow(dead_code, reason = "the benchmark needs no tunnels")]
    pub async fn with_tunnels(max_tunnels: usize) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::new(directory.path().join("state"));
        options.max_gateway_tunnels = max_tunnels;
        Fixture::with(directory, options).await
    }

    pub async fn at(directory: TempDir) -> Fixture {
        let options = Options::new(directory.path().join("state"));
        Fixture::with(directory, options).await
    }

    pub async fn with(directory: TempDir, options: Options) -> Fixture {
        // A process that another test is starting may hold the stopped server's lock and port until
        // its exec.
        let until = Instant::now() + STEP_TIMEOUT;
        let server = loop {
            match Server::start(&options).await {
                Err(_) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                started => break started.unwrap(),
            }
        };
        let admin = Api::of(&server.ready(), "dispatch");
        Fixture {
            server,
            directory,
            admin,
        }
    }

    /// Stops the server and starts it again on the same directory.
    pub async fn restarted(self) -> Fixture {
        Fixture::at(self.stopped().await).await
    }

    /// Stops the server, and returns its directory.
    pub async fn stopped(self) -> TempDir {
        self.server.stop().await;
        self.directory
    }

    /// An active user without administrator rights.
    pub async fn plain_user(&self, name: &str) -> Api {
        let user = json!({"user": {"username": name, "email": name, "is_active": true}});
        let user = self.admin.post("users", user).await.ok();
        self.token(json!({"owner_uuid": user["uuid"]})).await
    }

    /// Two of them.
    pub async fn plain_users(&self, [one, two]: [&str; 2]) -> [Api; 2] {
        [self.plain_user(one).await, self.plain_user(two).await]
    }

    /// Another token of the administrator, with these attributes.
    pub async fn token(&self, attributes: Value) -> Api {
        let body = json!({"api_client_authorization": attributes});
        let made = self
            .admin
            .post("api_client_authorizations", body)
            .await
            .ok();
        self.admin.with_token(&v2(&made))
    }

    /// A collection with one small file, and an image link `busybox:latest` to it.
    pub async fn image(&self) -> String {
        let manifest = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:image.tar\n";
        let body = json!({"collection": {"name": "image", "manifest_text": manifest}});
        let collection = self.admin.post("collections", body).await.ok();
        let link = json!({"link": {"link_class": "docker_image_repo+tag", "name": "busybox:latest",
                                   "head_uuid": collection["uuid"]}});
        self.admin.post("links", link).await.ok();
        collection["portable_data_hash"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// A committed request; `extra` overrides its attributes.
    pub async fn submit(&self, extra: Value) -> Value {
        submit(&self.admin, extra).await.ok()
    }

    /// A queued container.
    pub async fn queued(&self) -> String {
        self.image().await;
        let request = self.submit(json!({})).await;
        request["container_uuid"].as_str().unwrap().to_owned()
    }
}

pub fn v2(token: &Value) -> String {
    format!(
        "v2/{}/{}",
        token["uuid"].as_str().unwrap(),
        token["api_token"].as_str().unwrap()
    )
}

pub fn request(extra: Value) -> Value {
    let mut request = json!({
        "name": "test", "state": "Committed", "priority": 500,
        "command": ["true"], "container_image": "busybox", "output_path": "/out", "cwd": "/",
        "mounts": {"/out": {"kind": "tmp", "capacity": 1000}},
        "runtime_constraints": {"ram": 1_000_000, "vcpus": 1},
    });
    for (name, value) in extra.as_object().unwrap() {
        request[name] = value.clone();
    }
    json!({ "container_request": request })
}

pub async fn submit(api: &Api, extra: Value) -> Response {
    api.post("container_requests", request(extra)).await
}

async fn status(request: reqwest::RequestBuilder) -> Option<u16> {
    let response = request.send().await.ok()?;
    let status = response.status().as_u16();
    response.bytes().await.ok()?;
    Some(status)
}

impl Api {
    pub fn of(ready: &Value, name: &str) -> Api {
        let token = std::fs::read_to_string(ready["tokens"][name].as_str().unwrap()).unwrap();
        Api {
            client: client_trusting(Path::new(ready["certificate"].as_str().unwrap())),
            host: ready["host"].as_str().unwrap().to_owned(),
            token,
        }
    }

    pub fn with_token(&self, token: &str) -> Api {
        Api {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// A request without any token.
    pub fn bare(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client
            .request(method, format!("https://{}{path}", self.host))
    }

    pub fn raw(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.bare(method, path).bearer_auth(&self.token)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Response {
        let response = request.send().await.unwrap();
        let etag = response
            .headers()
            .get("etag")
            .map(|tag| tag.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Response { status, body, etag }
    }

    pub async fn get(&self, path: &str) -> Response {
        self.send(self.raw(Method::GET, &format!("/arvados/v1/{path}")))
            .await
    }

    fn listing(&self, resource: &str, params: Value) -> reqwest::RequestBuilder {
        let query: Vec<(String, String)> = params
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                (name.clone(), text)
            })
            .collect();
        self.raw(Method::GET, &format!("/arvados/v1/{resource}"))
            .query(&query)
    }

    /// Lists with parameters given as JSON values.
    pub async fn list(&self, resource: &str, params: Value) -> Response {
        self.send(self.listing(resource, params)).await
    }

    /// Like `list`, but reads only the size of the response.
    #[allow(dead_code, reason = "only the benchmark uses it")]
    pub async fn fetch(&self, resource: &str, params: Value) -> usize {
        let response = self.listing(resource, params).send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.bytes().await.unwrap().len()
    }

    pub async fn post(&self, path: &str, body: Value) -> Response {
        let request = self.raw(Method::POST, &format!("/arvados/v1/{path}"));
        self.send(request.json(&body)).await
    }

    /// The status of the response, if there is one.
    #[allow(dead_code, reason = "only the benchmark uses it")]
    pub async fn try_get(&self, path: &str) -> Option<u16> {
        status(self.raw(Method::GET, &format!("/arvados/v1/{path}"))).await
    }

    /// The same after a POST.
    #[allow(dead_code, reason = "only the benchmark uses it")]
    pub async fn try_post(&self, path: &str, body: Value) -> Option<u16> {
        let request = self.raw(Method::POST, &format!("/arvados/v1/{path}"));
        status(request.json(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Response {
        let request = self.raw(Method::PUT, &format!("/arvados/v1/{path}"));
        self.send(request.json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Response {
        self.send(self.raw(Method::DELETE, &format!("/arvados/v1/{path}")))
            .await
    }

    pub async fn lock(&self, uuid: &str) -> Response {
        self.post(&format!("containers/{uuid}/lock"), json!({}))
            .await
    }

    pub async fn unlock(&self, uuid: &str) -> Response {
        self.post(&format!("containers/{uuid}/unlock"), json!({}))
            .await
    }

    pub async fn change(&self, uuid: &str, attributes: Value) -> Response {
        self.put(
            &format!("containers/{uuid}"),
            json!({"container": attributes}),
        )
        .await
    }

    pub async fn container(&self, uuid: &str) -> Value {
        self.get(&format!("containers/{uuid}")).await.ok()
    }

    /// The container's own token, fetched by the lock holder.
    pub async fn container_token(&self, uuid: &str) -> Api {
        let token = self.get(&format!("containers/{uuid}/auth")).await.ok();
        self.with_token(&v2(&token))
    }
}

//! Mock Keep services, and clients of them.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::Token;
use arvados_client::keep::{KeepClient, KeepOptions, Locator, Service, ServiceList};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

pub const TOKEN: &str = "v2/zzzzz-gj3su-000000000000000/sesame";
pub const DEAD: &str = "http://127.0.0.1:1";

pub fn signed(data: &[u8]) -> Locator {
    Locator::of(data).sign(b"key", TOKEN, 0x7000_0000, 1_209_600)
}

/// Options with short delays, and long timeouts for slow machines.
pub fn options() -> KeepOptions {
    KeepOptions {
        replicas: 2,
        first_delay: Duration::from_millis(1),
        retry_budget: Duration::from_secs(300),
        stall_timeout: Duration::from_secs(300),
        ..KeepOptions::default()
    }
}

/// Options with a retry budget.
pub fn tried_for(budget: Duration) -> KeepOptions {
    KeepOptions {
        retry_budget: budget,
        ..options()
    }
}

pub fn client(urls: &[&str], options: KeepOptions) -> KeepClient {
    // Another test of this program may have installed the same provider before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let services = Service::from_urls(&urls.join(" ")).unwrap();
    let services = Arc::new(ServiceList::fixed(services));
    KeepClient::new(reqwest::Client::new(), Token::new(TOKEN), services, options)
}

pub async fn servers<const N: usize>() -> [MockServer; N] {
    let mut servers = Vec::new();
    for _ in 0..N {
        servers.push(MockServer::start().await);
    }
    servers.try_into().ok().unwrap()
}

pub fn stores(data: &[u8]) -> ResponseTemplate {
    ResponseTemplate::new(200)
        .set_body_string(format!("{}\n", signed(data)))
        .insert_header("X-Keep-Replicas-Stored", "1")
}

pub async fn on(server: &MockServer, verb: &str, response: ResponseTemplate) {
    Mock::given(method(verb))
        .respond_with(response)
        .mount(server)
        .await;
}

pub async fn requests(server: &MockServer) -> Vec<Request> {
    server.received_requests().await.unwrap()
}

pub async fn total_requests(servers: &[MockServer]) -> usize {
    let mut total = 0;
    for server in servers {
        total += requests(server).await.len();
    }
    total
}

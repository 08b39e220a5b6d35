//! Logs of running containers through tunnels, and saved ones.

mod fake;
mod saved;

use std::time::{Duration, Instant};

use reqwest::{Method, Response};
use serde_json::{Value, json};

use self::fake::{Gateway, GatewayBehavior, LOG, hmac, open};
use crate::containers::attempt;
use crate::fixture::{Api, Fixture};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A container that an attempt has locked.
pub struct Locked {
    pub request: Value,
    pub uuid: String,
    pub attempt: Api,
}

impl Locked {
    pub async fn of(fixture: &Fixture) -> Locked {
        fixture.image().await;
        Locked::one_more(fixture).await
    }

    pub async fn one_more(fixture: &Fixture) -> Locked {
        let request = fixture.submit(json!({"use_existing": false})).await;
        let uuid = request["container_uuid"].as_str().unwrap().to_owned();
        let attempt = attempt(fixture, &uuid).await;
        attempt.lock(&uuid).await.ok();
        Locked {
            request,
            uuid,
            attempt,
        }
    }

    /// The path of its log.
    pub fn log(&self, file: &str) -> String {
        let request = self.request["uuid"].as_str().unwrap();
        let uuid = &self.uuid;
        format!("/arvados/v1/container_requests/{request}/log/{uuid}{file}")
    }

    async fn tunnel(&self, fixture: &Fixture, manner: GatewayBehavior) -> Result<Gateway, String> {
        let path = format!("/arvados/v1/connect/{}/gateway_tunnel", self.uuid);
        open(fixture, &path, Some(&self.attempt.token), SECRET, manner).await
    }

    /// A tunnel as soon as the server has a free slot.
    async fn tunnel_soon(&self, fixture: &Fixture) -> Gateway {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match self.tunnel(fixture, GatewayBehavior::Honest).await {
                Ok(gateway) => return gateway,
                Err(refused) => assert!(Instant::now() < until, "{refused}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

pub async fn get(api: &Api, path: &str) -> Response {
    api.raw(Method::GET, path).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_running_container_is_read_through_its_tunnel_also_in_part() {
    let fixture = Fixture::new().await;
    let locked = Locked::of(&fixture).await;
    let gateway = locked
        .tunnel(&fixture, GatewayBehavior::Honest)
        .await
        .ok()
        .unwrap();
    assert_eq!(
        gateway.internal_url,
        format!("https://{}/", fixture.admin.host)
    );
    let path = locked.log("/stdout.txt");
    let whole = get(&fixture.admin, &path).await;
    assert_eq!(whole.status(), 200);
    assert_eq!(whole.headers().get("set-cookie"), None);
    assert_eq!(whole.text().await.unwrap(), LOG);
    let part = fixture.admin.raw(Method::GET, &path);
    let part = part.header("range", "bytes=-6").send().await.unwrap();
    assert_eq!(part.status(), 206);
    assert_eq!(part.headers()["content-range"], "bytes 6-11/12");
    assert_eq!(part.text().await.unwrap(), &LOG[6..]);

    let received_requests = gateway.received_requests.lock().unwrap();
    let (asked_path, headers) = &received_requests[0];
    assert_eq!(*asked_path, path);
    assert_eq!(headers["x-arvados-container-gateway-uuid"], locked.uuid);
    assert_eq!(headers["x-webdav-source"], "/log");
    assert_eq!(headers["x-webdav-prefix"], locked.log(""));
    assert_eq!(headers.get("authorization"), None, "the token stays here");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_derived_from_the_root_token_opens_a_tunnel_at_both_paths() {
    for fixture in [Fixture::as_arvados().await, Fixture::new().await] {
        let root = Api::of(&fixture.server.ready(), "root").token;
        let bare = root.rsplit('/').next().unwrap();
        let locked = Locked::of(&fixture).await;
        for (of, root) in [("containers", bare), ("connect", root.as_str())] {
            let path = format!("/arvados/v1/{of}/{}/gateway_tunnel", locked.uuid);
            let secret = hmac(root, locked.uuid.as_bytes());
            let gateway = open(&fixture, &path, None, &secret, GatewayBehavior::Honest).await;
            let gateway = gateway.ok().unwrap();
            let log = get(&fixture.admin, &locked.log("/stdout.txt")).await;
            assert_eq!(log.text().await.unwrap(), LOG);
            assert_eq!(gateway.received_requests.lock().unwrap().len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_secrets_and_tokens_that_hold_no_lock_open_nothing() {
    let fixture = Fixture::new().await;
    let locked = Locked::of(&fixture).await;
    let other = Locked::one_more(&fixture).await;
    let path = format!("/arvados/v1/containers/{}/gateway_tunnel", locked.uuid);
    let admin = fixture.admin.token.as_str();
    let derived_for_other = hmac(&fixture.admin.token, locked.uuid.as_bytes());
    for (token, secret) in [
        (None, SECRET),
        (None, derived_for_other.as_str()),
        (Some("bogus"), SECRET),
        (Some(admin), SECRET),
        (Some(other.attempt.token.as_str()), SECRET),
        (Some(locked.attempt.token.as_str()), "short"),
        (Some(locked.attempt.token.as_str()), ""),
    ] {
        let refused = open(&fixture, &path, token, secret, GatewayBehavior::Honest).await;
        let refused = refused.err().unwrap();
        assert!(refused.starts_with("HTTP/1.1 401 "), "{secret}: {refused}");
    }
    let post = locked.attempt.raw(Method::POST, &path);
    let post = post.form(&[("auth_secret", SECRET)]);
    locked.attempt.send(post).await.error_of(400);

    let fixture = Fixture::as_arvados().await;
    let locked = Locked::of(&fixture).await;
    let refused = locked
        .tunnel(&fixture, GatewayBehavior::Honest)
        .await
        .err()
        .unwrap();
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_does_not_prove_the_secret_is_not_believed() {
    let fixture = Fixture::new().await;
    let locked = Locked::of(&fixture).await;
    let _gateway = locked
        .tunnel(&fixture, GatewayBehavior::Impostor)
        .await
        .ok()
        .unwrap();
    let answer = fixture.admin.raw(Method::GET, &locked.log("/stdout.txt"));
    let refused = fixture.admin.send(answer).await.error_of(503);
    assert!(refused.contains("did not prove"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_gateway_and_slow_readers_hold_up_nobody_else() {
    let fixture = Fixture::new().await;
    let (silent, large) = (Locked::of(&fixture).await, Locked::one_more(&fixture).await);
    let _silent = silent
        .tunnel(&fixture, GatewayBehavior::Silent)
        .await
        .ok()
        .unwrap();
    let _large = large
        .tunnel(&fixture, GatewayBehavior::Large)
        .await
        .ok()
        .unwrap();
    let began = Instant::now();
    let path = silent.log("/stdout.txt");
    let waiting = tokio::spawn({
        let request = fixture.admin.raw(Method::GET, &path);
        async move { request.send().await.unwrap().status().as_u16() }
    });
    // Each client has read the response head and reads no further.
    let mut slow = Vec::new();
    for _ in 0..5 {
        slow.push(get(&fixture.admin, &large.log("/stdout.txt")).await);
    }
    let quick = get(&fixture.admin, &large.log("/stdout.txt")).await;
    assert_eq!(quick.bytes().await.unwrap().len(), 64 << 20);
    fixture.admin.get("users/current").await.ok();
    assert_eq!(waiting.await.unwrap(), 503);
    assert!(began.elapsed() < Duration::from_secs(240));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_ends_with_its_token_and_with_its_container() {
    let fixture = Fixture::new().await;
    let (revoked, ended) = (Locked::of(&fixture).await, Locked::one_more(&fixture).await);
    let first = revoked
        .tunnel(&fixture, GatewayBehavior::Honest)
        .await
        .ok()
        .unwrap();
    let second = ended
        .tunnel(&fixture, GatewayBehavior::Honest)
        .await
        .ok()
        .unwrap();
    until_tunnels(&fixture, 2).await;
    let token = revoked.attempt.token.split('/').nth(1).unwrap();
    let path = format!("api_client_authorizations/{token}");
    fixture.admin.delete(&path).await.ok();
    let cancelled = json!({"state": "Cancelled"});
    fixture.admin.change(&ended.uuid, cancelled).await.ok();
    for (locked, gateway) in [(&revoked, first), (&ended, second)] {
        let log = get(&fixture.admin, &locked.log("/stdout.txt")).await;
        assert_eq!(
            log.status(),
            404,
            "nothing is asked of the gateway any more"
        );
        let end = tokio::time::timeout(Duration::from_secs(30), gateway.serving);
        end.await.expect("the connection ends").unwrap();
        assert!(gateway.received_requests.lock().unwrap().is_empty());
    }
    until_tunnels(&fixture, 0).await;
}

/// Waits until the server counts this many tunnels. Its peer sees the end of one a moment earlier.
async fn until_tunnels(fixture: &Fixture, count: usize) {
    let line = format!("dispatch_api_gateway_tunnels {count}\n");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !metrics(fixture).await.contains(&line) {
        assert!(Instant::now() < deadline, "not {line}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn metrics(fixture: &Fixture) -> String {
    let answer = fixture.admin.raw(Method::GET, "/metrics");
    answer.send().await.unwrap().text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_one_tunnel_and_the_server_so_many() {
    let fixture = Fixture::with_tunnels(2).await;
    let (first, second) = (Locked::of(&fixture).await, Locked::one_more(&fixture).await);
    let third = Locked::one_more(&fixture).await;
    let earlier = first
        .tunnel(&fixture, GatewayBehavior::Honest)
        .await
        .ok()
        .unwrap();
    let later = first
        .tunnel(&fixture, GatewayBehavior::Honest)
        .await
        .ok()
        .unwrap();
    let end = tokio::time::timeout(Duration::from_secs(30), earlier.serving);
    end.await.expect("the earlier one ends").unwrap();
    get(&fixture.admin, &first.log("/stdout.txt")).await;
    assert_eq!(later.received_requests.lock().unwrap().len(), 1);
    // The slot of a tunnel is free a moment after its end.
    let _second = second.tunnel_soon(&fixture).await;
    let refused = third
        .tunnel(&fixture, GatewayBehavior::Honest)
        .await
        .err()
        .unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    // A client that connects again gets the slot of its lost connection.
    first.tunnel_soon(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_read_the_request_may_read_its_log() {
    let fixture = Fixture::new().await;
    let locked = Locked::of(&fixture).await;
    let _gateway = locked
        .tunnel(&fixture, GatewayBehavior::Honest)
        .await
        .ok()
        .unwrap();
    let stranger = fixture.plain_user("stranger").await;
    let path = locked.log("/stdout.txt");
    assert_eq!(get(&stranger, &path).await.status(), 404);
    assert_eq!(get(&locked.attempt, &path).await.status(), 403);
    let nobody = get(&fixture.admin.with_token("bogus"), &path).await;
    assert_eq!(nobody.status(), 401);
    assert!(
        nobody.headers()["www-authenticate"]
            .to_str()
            .unwrap()
            .starts_with("Basic")
    );
    // The container of another request, in the path of the user's own request.
    let own = Locked::one_more(&fixture).await;
    let mixed = own.log("/stdout.txt").replace(&own.uuid, &locked.uuid);
    assert_eq!(get(&fixture.admin, &mixed).await.status(), 404);
}

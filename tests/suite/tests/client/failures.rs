//! Error messages of the client library: wrong token, unreachable server, untrusted certificate.

use std::time::Duration;

use arvados_client::{Client, Endpoint, Error, Token};

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_one_clear_sentence() {
    let fixture = Fixture::new().await;
    let stranger = fixture
        .user
        .with_token(Token::new("v2/zzzzz-gj3su-0123456789abcde/wrong"));
    let error = stranger.current_user().await.unwrap_err();
    assert!(error.is_denied());
    let text = error.to_string();
    assert!(
        text.starts_with("the API server answered 401 Unauthorized: Not logged in (req-"),
        "{text}"
    );
    assert!(!text.contains("wrong"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_named_and_nothing_took_effect() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut endpoint = Endpoint::new(&format!("127.0.0.1:{port}"), Token::new("t")).unwrap();
    endpoint.retry_budget = Duration::from_millis(300);
    let error = Client::new(endpoint)
        .unwrap()
        .current_user()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(!error.is_ambiguous());
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_nobody_vouches_for_is_refused() {
    let fixture = Fixture::new().await;
    let known = fixture.user.endpoint();
    let mut endpoint = Endpoint::new(&known.host, known.token.clone()).unwrap();
    endpoint.retry_budget = Duration::from_millis(300);
    assert!(matches!(
        Client::new(endpoint.clone()).unwrap().current_user().await,
        Err(Error::Connect { .. })
    ));
    endpoint.insecure = true;
    let seen = Client::new(endpoint).unwrap().current_user().await.unwrap();
    let user = fixture.user.current_user().await.unwrap();
    assert_eq!(seen.uuid, user.uuid);
    drop(fixture.server);
}

//! What a real Arvados server does otherwise: its cache, and its one token for live logs.

use arvados_client::Token;
use dispatch_core::service::subcommands::check::gateway_key_fault;
use jiff::Timestamp;

use crate::fixture::Fixture;

/// Arvados keeps the discovery document for minutes, with the time of its making.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_of_the_server_is_not_that_of_its_cache() {
    for fixture in [Fixture::new().await, Fixture::of_arvados().await] {
        let server = fixture.dispatch.server_time().await.unwrap();
        let apart = (Timestamp::now() - server)
            .total(jiff::Unit::Second)
            .unwrap();
        assert!(apart.abs() < 60.0, "{server}");
    }
}

/// The secret of live logs is derived from the token of the system user alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_live_logs_are_refused_for_is_told() {
    let fixture = Fixture::of_arvados().await;
    let ready = serde_json::to_value(fixture.server.ready()).unwrap();
    let token = |who: &str| {
        let text = std::fs::read_to_string(ready["tokens"][who].as_str().unwrap()).unwrap();
        Token::new(text.trim())
    };
    let client = &fixture.dispatch;
    assert_eq!(gateway_key_fault(client, &token("root")).await, None);
    let other = gateway_key_fault(client, &token("user")).await.unwrap();
    assert!(other.contains("of another user"), "{other}");
    let unknown = Token::new("v2/local-gj3su-000000000000007/nobody");
    let unknown = gateway_key_fault(client, &unknown).await.unwrap();
    assert!(
        unknown.contains("does not know SystemRootToken"),
        "{unknown}"
    );
    // dispatch-api accepts any secret from an attempt.
    let own = Fixture::new().await;
    if !Fixture::emulates_arvados() {
        let fault = gateway_key_fault(&own.dispatch, &token("user")).await;
        assert_eq!(fault, None);
    }
}

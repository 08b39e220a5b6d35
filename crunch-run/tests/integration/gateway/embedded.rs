//! The log of a container on dispatch-api, while it runs and afterwards.

use std::time::Instant;

use crate::run_lab::{Job, World, can_run, finish, go_on};

#[tokio::test]
async fn dispatch_api_shows_the_log_of_a_running_container_and_the_saved_one_afterwards() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock_held("echo live", "true").await;
    let child = world.program(&job, &[]).spawn().unwrap();
    world.until_logged(&job, "live").await;
    let has_gateway = |record: &arvados_client::records::Container| {
        let record = serde_json::to_value(record).unwrap();
        record["gateway_address"]
            .as_str()
            .is_some_and(|address| address.starts_with("tunnel https://"))
    };
    world
        .until(&job, "its gateway_address is a tunnel", has_gateway)
        .await;
    let (mut status, mut text) = log(&world, &job).await;
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    while !text.contains("live") {
        assert!(Instant::now() < deadline, "{status}: {text}");
        (status, text) = log(&world, &job).await;
    }
    assert_eq!(status, 200, "{text}");
    assert!(text.ends_with(" live\n"), "{text}");
    let record = world.record(&job).await;
    assert_eq!(record.state.to_string(), "Running");
    go_on(&job);
    assert_eq!(finish(child).await.code, 0);
    assert_eq!(log(&world, &job).await, (200, text));
}

async fn log(world: &World, job: &Job) -> (u16, String) {
    let environment = world.environment();
    let pem = std::fs::read(&environment["SSL_CERT_FILE"]).unwrap();
    // Another test may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()])
        .build()
        .unwrap();
    let token = std::fs::read_to_string(world.state().join("tokens/user")).unwrap();
    let url = format!(
        "https://{}/arvados/v1/container_requests/{}/log/{}/stdout.txt",
        environment["ARVADOS_API_HOST"], job.request, job.uuid
    );
    let answer = client.get(url).bearer_auth(token).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

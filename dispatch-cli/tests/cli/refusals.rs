//! A server with transient refusals, and records that only seem to be missing.

use http::{Method, StatusCode};
use serde_json::json;
use suite_tests::proxy::{Effect, Fault, Rule};

use crate::fixture::{Fixture, run};

const LOG: [(&str, &str); 1] = [("stdout.txt", "2026-11-21T07:00:00.000000001Z hello\n")];

fn refused(status: StatusCode) -> Fault {
    Fault::Answer(status, Effect::None)
}

/// Refuses the next requests of the records of a job after the first of each, like a server whose
/// processes have lost their database connections.
fn a_while() -> Vec<Rule> {
    let rule = |path: &str, status| Rule::next(2, Method::GET, path, refused(status)).after(1);
    vec![
        rule("container_requests/*", StatusCode::UNAUTHORIZED),
        rule("container_requests/*", StatusCode::NOT_FOUND),
        rule("containers/*", StatusCode::FORBIDDEN),
        rule("containers/*", StatusCode::NOT_FOUND),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_and_following_outlast_a_while_of_refusals() {
    let fixture = Fixture::with_image().await;
    for args in [&["wait"][..], &["logs", "-f"]] {
        let job = fixture.submit("a").await;
        fixture.start(&job).await;
        let (proxy, command) = fixture.proxy();
        proxy.faults(a_while());
        let args = [args, &[job.uuid.as_str()]].concat();
        let running = tokio::spawn(run(command(&args)));
        while proxy.fault_count() < 8 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        fixture.finish(&job, 0, &[], &LOG).await;
        let done = running.await.unwrap();
        assert_eq!(done.code, 0, "{args:?}: {done:?}");
        let printed = if args[0] == "logs" { "hello\n" } else { "" };
        assert_eq!(done.out, printed, "{args:?}: {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_outlast_a_while_in_which_their_token_is_refused() {
    let fixture = Fixture::with_image().await;
    std::fs::create_dir(fixture.path("new")).unwrap();
    std::fs::write(fixture.path("new/tool"), "another image").unwrap();
    let job = fixture.submit("a").await;
    let while_refused =
        |method: Method, path: &str| Rule::next(3, method, path, refused(StatusCode::UNAUTHORIZED));
    let rows = [
        ("list", while_refused(Method::GET, "containers")),
        ("show 1", while_refused(Method::GET, "container_requests")),
        (
            "image add new new",
            while_refused(Method::POST, "collections"),
        ),
        (
            "submit --image tool -- tool",
            while_refused(Method::POST, "container_requests"),
        ),
        (
            "kill 1",
            while_refused(Method::POST, "container_requests/bulk_update"),
        ),
    ];
    let (proxy, command) = fixture.proxy();
    for (line, rule) in rows {
        proxy.faults([rule]);
        let before = proxy.fault_count();
        let args: Vec<&str> = line.split(' ').collect();
        run(command(&args)).await.ok();
        assert_eq!(proxy.fault_count() - before, 3, "{line}");
    }
    let listed = fixture.run(&["--json", "list"]).await.json();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed[1]["uuid"], job.uuid);
    let image = fixture.run(&["image", "list"]).await.ok();
    assert_eq!(image.matches("new").count(), 1, "{image}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reused_success_is_a_success_though_the_reply_is_final_already() {
    let fixture = Fixture::with_image_of_admin().await;
    let submit = ["submit", "--image", "tool", "--reuse"];
    let first = [&["--json"], &submit[..], &["--", "tool"]].concat();
    let made = fixture.run(&first).await.json();
    let job = crate::fixture::Submitted {
        id: "1".to_owned(),
        uuid: made["uuid"].as_str().unwrap().to_owned(),
        container: made["container_uuid"].as_str().unwrap().parse().unwrap(),
    };
    fixture.start(&job).await;
    fixture.finish(&job, 0, &[("file", "x")], &LOG).await;
    let (proxy, command) = fixture.proxy();
    let is_final = Fault::changed(|mut reply| {
        reply["state"] = json!("Final");
        reply
    });
    proxy.faults([Rule::every(Method::POST, "container_requests", is_final)]);
    let again = [&submit[..], &["--wait", "--", "tool"]].concat();
    let done = run(command(&again)).await;
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
    assert_eq!(proxy.fault_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_told_of_though_its_first_container_and_its_log_s_hash_cannot_be_read() {
    let fixture = Fixture::with_image().await;
    let first = fixture.submit("a").await;
    fixture.start(&first).await;
    fixture.update(&first, json!({"state": "Cancelled"})).await;
    let shown = fixture.run(&["--json", "show", &first.id]).await.json();
    let second = crate::fixture::Submitted {
        id: first.id.clone(),
        uuid: first.uuid.clone(),
        container: shown["request"]["container_uuid"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap(),
    };
    assert_ne!(second.container, first.container);
    fixture.start(&second).await;
    let pdh = fixture.store(&LOG).await;
    let (proxy, command) = fixture.proxy();
    let gone = |path: String| Rule::every(Method::GET, &path, refused(StatusCode::NOT_FOUND));
    let hidden = || {
        proxy.faults([
            gone(format!("containers/{}", first.container)),
            gone(format!("collections/{}", pdh.replace('+', "%2B"))),
        ])
    };
    hidden();
    fixture.update(&second, json!({"log": pdh})).await;
    let explained = run(command(&["explain", &first.id])).await.ok();
    assert!(explained.contains("has been running"), "{explained}");
    fixture.finish(&second, 3, &[], &LOG).await;
    assert_eq!(run(command(&["logs", &first.id])).await.ok(), "hello\n");
    let shown = run(command(&["show", &first.id])).await.ok();
    assert!(shown.contains("earlier ones were cancelled"), "{shown}");
    assert_eq!(run(command(&["wait", &first.id])).await.code, 3);
    let former = run(command(&["explain", first.container.as_str()])).await;
    former.says(3, &["there is no job", first.container.as_str()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_that_are_set_but_empty_are_unset() {
    let fixture = Fixture::new().await;
    let mut command = fixture.command(&["list"]);
    for name in [
        "DISPATCH_STATE_DIR",
        "XDG_STATE_HOME",
        "ARVADOS_KEEP_SERVICES",
    ] {
        command.env(name, "");
    }
    run(command).await.ok();
    let mut command = fixture.command(&["list"]);
    for name in ["ARVADOS_API_HOST", "ARVADOS_API_TOKEN"] {
        command.env(name, "");
    }
    run(command).await.says(4, &["no server is configured"]);
}

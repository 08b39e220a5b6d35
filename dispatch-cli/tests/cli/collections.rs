//! Collections are listed, removed, and restored from the trash.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use suite_tests::proxy::{Effect, Fault, Rule};

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_or_made_can_be_listed_removed_and_restored() {
    let fixture = Fixture::with_image().await;
    let list = async |more: &[&str]| -> Vec<Value> {
        let flags = [&["--json", "collection", "list"], more].concat();
        fixture.run(&flags).await.json().as_array().unwrap().clone()
    };
    std::fs::write(fixture.path("table"), "1 2 3").unwrap();
    let put = fixture.run(&["put", "table", "--name", "my table"]).await;
    let put = put.ok();
    let uuid = put.split(' ').next().unwrap();
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    fixture.finish(&job, 0, &[("file", "x")], &[]).await;

    let table = fixture.run(&["collection", "ls"]).await.ok();
    for word in ["my table", "Output of a", "5 B", uuid] {
        assert!(table.contains(word), "no {word:?} in {table}");
    }
    let mine = list(&["--name", "my%"]).await;
    assert_eq!((mine.len(), &mine[0]["bytes"]), (1, &5.into()));
    assert!(mine[0]["gone_at"].is_null());
    assert_eq!(list(&["--limit", "1"]).await.len(), 1);
    assert!(list(&["--trash"]).await.is_empty());

    // What crunch-run has stored for the server is nobody's.
    let original = format!("output for {}", job.container);
    let manifest = json!({"name": original, "manifest_text": "", "is_trashed": true});
    fixture.user.create_collection(manifest).await.unwrap();
    assert!(list(&["--trash"]).await.is_empty());

    // An input of a job that has not ended is needed.
    let submit = format!("submit --image tool --input a={uuid} -- x");
    let submit: Vec<&str> = submit.split(' ').collect();
    let submitted = fixture.run(&submit).await.ok();
    let user = submitted.split(' ').next().unwrap();
    let needed = fixture.run(&["collection", "rm", uuid]).await;
    needed.says(1, &[&format!("is left alone: job {user} needs it")]);
    fixture.run(&["kill", user]).await.ok();

    let removed = fixture.run(&["collection", "rm", uuid]).await;
    assert!(removed.err.contains("1 collection moved to the trash"));
    fixture.run(&["rm", &job.id]).await.ok();
    assert!(list(&["--name", "my%"]).await.is_empty());
    let trash = list(&["--trash"]).await;
    let named = |name: &str| trash.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(named("my table")["uuid"], uuid);
    assert!(named("my table")["gone_at"].is_string());
    let output = named("Output of a")["uuid"].as_str().unwrap();
    let again = fixture.run(&["collection", "rm", uuid]).await;
    again.says(3, &["not a collection that exists"]);

    let restored = fixture.run(&["collection", "restore", uuid, output]).await;
    assert!(
        restored.err.contains("2 collections restored"),
        "{restored:?}"
    );
    let content = fixture.run(&["get", &format!("{output}:file"), "-"]).await;
    assert_eq!(content.ok(), "x");
    assert_eq!(list(&["--name", "my%"]).await.len(), 1);
    let again = fixture.run(&["collection", "restore", uuid]).await;
    assert!(again.err.contains("is not in the trash"), "{again:?}");
    // An administrator sees those of all users.
    let all = fixture.admin_command(&["collection", "list", "--admin"]);
    let all = crate::fixture::run(all).await.ok();
    let row = all.lines().find(|line| line.starts_with(uuid)).unwrap();
    assert!(row.ends_with("user"), "{all}");
    let none = fixture
        .run(&["collection", "restore", "local-4zz18-000000000000000"])
        .await;
    none.says(3, &["not a collection that exists"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_restored_although_the_answer_was_lost_is_no_failure() {
    let fixture = Fixture::new().await;
    let created = fixture.user.create_collection(json!({"manifest_text": ""}));
    let uuid = created.await.unwrap().uuid.to_string();
    let (proxy, command) = fixture.proxy();
    for (number, lost) in [
        (1, Fault::Cut(Effect::Done)),
        (2, Fault::Answer(StatusCode::BAD_GATEWAY, Effect::Done)),
    ] {
        fixture.run(&["collection", "rm", &uuid]).await.ok();
        proxy.faults([Rule::next(1, Method::POST, "collections/*/untrash", lost)]);
        let restored = crate::fixture::run(command(&["collection", "restore", &uuid])).await;
        assert_eq!(restored.code, 0, "{restored:?}");
        assert!(
            restored.err.contains("1 collection restored"),
            "{restored:?}"
        );
        assert_eq!(proxy.fault_count(), number);
    }
    // Nothing is asked of a server that cannot even say whether the collection is there.
    let asked = proxy.seen().len();
    let unknown = Fault::Answer(StatusCode::FORBIDDEN, Effect::None);
    proxy.faults([Rule::every(Method::GET, "collections/*", unknown)]);
    let restored = crate::fixture::run(command(&["collection", "restore", &uuid])).await;
    assert_ne!(restored.code, 0, "{restored:?}");
    assert_eq!(proxy.count(Method::POST, "collections/*/untrash"), 2);
    assert!(proxy.seen().len() > asked);
}

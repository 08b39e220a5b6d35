//! `replace_files`: files of a collection are moved, copied and removed by the server.

use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, v2};

const FOO: &str = "acbd18db4cc2f85cedef654fccc4a4d8";
const PDH: &str = "83367e8913dcec0bf3fc25ed5a27eacb+49";

/// A collection of this user with the one file `foo.txt`.
async fn with_foo(api: &Api) -> Value {
    let put = api
        .raw(reqwest::Method::PUT, &format!("/{FOO}"))
        .body("foo");
    let locator = api.send(put).await.ok();
    let text = format!(". {} 0:3:foo.txt\n", locator.as_str().unwrap().trim());
    let created = json!({"collection": {"manifest_text": text}});
    api.post("collections", created).await.ok()
}

fn path_of(collection: &Value) -> String {
    format!("collections/{}", collection["uuid"].as_str().unwrap())
}

/// The manifest without signatures.
fn manifest(collection: &Value) -> String {
    let text = collection["manifest_text"].as_str().unwrap();
    let unsigned = |word: &str| match word.split_once("+A") {
        Some((locator, _)) => locator.to_owned(),
        None => word.to_owned(),
    };
    text.split(' ').map(unsigned).collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_renamed_copied_and_removed() {
    for fixture in [Fixture::new().await, Fixture::as_arvados().await] {
        let user = fixture.plain_user("plain").await;
        let collection = with_foo(&user).await;
        let path = path_of(&collection);

        let rename = json!({"replace_files": {"/d/bar": "current/foo.txt", "/foo.txt": ""}});
        let renamed = user.put(&path, rename).await.ok();
        assert_eq!(manifest(&renamed), format!("./d {FOO}+3 0:3:bar\n"));
        assert_eq!(manifest(&user.get(&path).await.ok()), manifest(&renamed));
        assert_eq!(renamed["file_count"], 1);

        // The files of another collection, with other attributes, into a new one.
        with_foo(&user).await;
        let copy = json!({"collection": {"name": "copy"},
                          "replace_files": {"/all": format!("{PDH}/")}});
        let copy = user.post("collections", copy).await.ok();
        assert_eq!(copy["name"], "copy");
        assert_eq!(manifest(&copy), format!("./all {FOO}+3 0:3:foo.txt\n"));

        // As text in the query.
        let files = json!({"/all": ""}).to_string();
        let query = format!(
            "{}?replace_files={}",
            path_of(&copy),
            files
                .replace('"', "%22")
                .replace('{', "%7B")
                .replace('}', "%7D")
        );
        assert_eq!(manifest(&user.put(&query, json!({})).await.ok()), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_changes_nothing() {
    let fixture = Fixture::new().await;
    let (one, two) = (
        fixture.plain_user("one").await,
        fixture.plain_user("two").await,
    );
    let path = path_of(&with_foo(&one).await);
    let given = one.get(&path).await.ok()["manifest_text"].clone();
    for (replace, more, status, words) in [
        (
            json!({"/x": "current/none"}),
            json!({}),
            400,
            "does not exist",
        ),
        (json!({"x": ""}), json!({}), 400, "absolute path"),
        (json!("/x"), json!({}), 400, "must be an object"),
        (
            json!({"/x": ""}),
            json!({"manifest_text": given}),
            400,
            "no source names",
        ),
        (
            json!({"/x": "d41d8cd98f00b204e9800998ecf8427f+0/"}),
            json!({}),
            404,
            "not found",
        ),
    ] {
        let change = json!({"collection": more, "replace_files": replace});
        let refusal = one.put(&path, change).await.error_of(status);
        assert!(refusal.contains(words), "{refusal}");
    }
    // What one user may not read, the server does not copy for that user.
    let theirs = json!({"replace_files": {"/": format!("{PDH}/")}});
    two.post("collections", theirs.clone()).await.error_of(404);
    two.put(&path, theirs).await.error_of(404);
    // Nor what a scope of the token does not let it read.
    let scopes = json!({"scopes": ["POST /arvados/v1/collections"]});
    let only_post = one.post("api_client_authorizations", scopes).await.ok();
    let only_post = one.with_token(&v2(&only_post));
    let copy = json!({"replace_files": {"/": format!("{PDH}/")}});
    only_post.post("collections", copy).await.error_of(403);
    only_post
        .post("collections", json!({"name": "empty"}))
        .await
        .ok();
    assert_eq!(
        manifest(&one.get(&path).await.ok()),
        format!(". {FOO}+3 0:3:foo.txt\n")
    );
    // The manifest of the request is a source when it is named as one.
    let named = json!({"collection": {"manifest_text": given},
                       "replace_files": {"/in": "manifest_text/foo.txt"}});
    let named = one.put(&path, named).await.ok();
    assert_eq!(manifest(&named), format!(". {FOO}+3 0:3:foo.txt 0:3:in\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_is_lost_to_another_at_the_same_time() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let path = path_of(&with_foo(&user).await);
    let changes = (0..8).map(|n| {
        let change = json!({"replace_files": {format!("/{n}"): "current/foo.txt"}});
        user.put(&path, change)
    });
    for changed in futures_util::future::join_all(changes).await {
        changed.ok();
    }
    let collection = user.get(&path).await.ok();
    assert_eq!(collection["file_count"], 9, "{collection}");
}

/// Arvados has it since 3.2, and nobody must believe that it was done.
#[tokio::test(flavor = "multi_thread")]
async fn replace_segments_is_refused() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let collection = with_foo(&user).await;
    let path = path_of(&collection);
    let segments = json!({"replace_segments": {"a+1 0 1": "b+1 0 1"}});
    user.put(&path, segments.clone()).await.error_of(422);
    user.post("collections", segments).await.error_of(422);
    let query = format!("{path}?replace_segments=%7B%7D");
    user.put(&query, json!({})).await.error_of(422);
    assert_eq!(user.get(&path).await.ok()["portable_data_hash"], PDH);
}

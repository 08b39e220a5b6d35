//! `replace_files`: files of a collection are moved, copied and removed by the server; and
//! `replace_segments`: the same files get other blocks.

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
    let [one, two] = fixture.plain_users(["one", "two"]).await;
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
            "collection d41d8cd98f00b204e9800998ecf8427f+0 does not exist",
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

/// Stores a block, and returns its signed locator.
async fn stored(api: &Api, text: &'static str) -> String {
    let hash = arvados_client::locator::BlockHash::of(text.as_bytes());
    let put = api.raw(reqwest::Method::PUT, &format!("/{hash}"));
    let locator = api.send(put.body(text)).await.ok();
    locator.as_str().unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_of_blocks_are_replaced() {
    for fixture in [Fixture::new().await, Fixture::as_arvados().await] {
        let user = fixture.plain_user("plain").await;
        let (small, other) = (stored(&user, "fo").await, stored(&user, "oba").await);
        let large = stored(&user, "fooba").await;
        let manifest_of = |text: &str| json!({"manifest_text": text});
        let old = format!(". {small} {other} 0:2:one 2:3:two\n");
        let segments = json!({
            format!("{small} 0 2"): format!("{large} 0 2"),
            format!("{other} 0 3"): format!("{large} 2 3"),
        });
        let hash = &large[..32];
        let expected = format!(". {hash}+5 0:2:one 2:3:two\n");

        // With the manifest in the same request, and on what is there.
        let both = json!({"collection": manifest_of(&old), "replace_segments": segments});
        let created = user.post("collections", both).await.ok();
        assert_eq!(manifest(&created), expected);
        let stored = json!({"collection": manifest_of(&old)});
        let path = path_of(&user.post("collections", stored).await.ok());
        let repack = json!({"replace_segments": segments});
        assert_eq!(
            manifest(&user.put(&path, repack.clone()).await.ok()),
            expected
        );
        // Again there is nothing to do. After other replacements it meets their result.
        assert_eq!(manifest(&user.put(&path, repack).await.ok()), expected);
        let files = json!({"collection": manifest_of(&old), "replace_segments": segments,
                           "replace_files": {"/d": "manifest_text/", "/one": "", "/two": ""}});
        let placed = user.put(&path, files).await.ok();
        assert_eq!(manifest(&placed), expected.replacen('.', "./d", 1));

        // Nobody gets at the block of another user, who may have written it later.
        let stranger = fixture.plain_user("stranger").await;
        let own = path_of(&with_foo(&stranger).await);
        let steal = |locator: &str| json!({"replace_segments": {format!("{FOO}+3 0 3"): format!("{locator} 1 3")}});
        stranger.put(&own, steal(&large)).await.error_of(403);
        let unsigned = format!("{hash}+5");
        stranger.put(&own, steal(&unsigned)).await.error_of(403);
        assert_eq!(stranger.get(&own).await.ok()["portable_data_hash"], PDH);

        let bad = json!({"replace_segments": {"a+1 0 1": "b+1 0 1"}});
        stranger.put(&own, bad.clone()).await.error_of(400);
        stranger.post("collections", bad).await.error_of(400);
    }
}

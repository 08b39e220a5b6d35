//! What one user may change or see of what is another's, by content, by reuse and by the token.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, submit, v2};

const FOO: &str = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:image.tar\n";

async fn uuid_of(api: &Api) -> Value {
    api.get("users/current").await.ok()["uuid"].clone()
}

/// A project of `owner` in which `guest` may do this.
async fn shared_project(owner: &Api, guest: &Api, level: &str) -> Value {
    let group = json!({"group": {"name": level, "group_class": "project"}});
    let project = owner.post("groups", group).await.ok()["uuid"].clone();
    let link = json!({"link": {"link_class": "permission", "name": level,
                               "tail_uuid": uuid_of(guest).await, "head_uuid": project}});
    owner.post("links", link).await.ok();
    project
}

/// An administrator's collection: its manifest needs no signature.
async fn image(fixture: &Fixture, owner: &Value) -> Value {
    let body = json!({"collection": {"owner_uuid": owner, "manifest_text": FOO}});
    fixture.admin.post("collections", body).await.ok()
}

/// Who may write a collection replaces no program that its owner runs by a name.
#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_an_image_means_the_content_that_got_it() {
    let fixture = Fixture::new().await;
    let [alice, bob] = fixture.plain_users(["alice", "bob"]).await;
    let project = shared_project(&alice, &bob, "can_write").await;
    let tool = image(&fixture, &project).await;
    let name = json!({"link": {"link_class": "docker_image_repo+tag", "name": "tool:latest",
                               "head_uuid": tool["uuid"], "owner_uuid": project}});
    let name = alice.post("links", name).await.ok();
    assert_eq!(
        name.get("head_pdh"),
        None,
        "an attribute of the server alone"
    );
    let path = |record: &Value, kind: &str| format!("{kind}/{}", record["uuid"].as_str().unwrap());
    let block = bob.raw(Method::PUT, "/37b51d194a7513e45b56f6524f2d51f2");
    let locator = bob.send(block.body("bar")).await.ok();
    let others = format!(". {} 0:3:image.tar\n", locator.as_str().unwrap().trim());
    let replaced = json!({"collection": {"manifest_text": others}});
    bob.put(&path(&tool, "collections"), replaced).await.ok();

    let run = async |api: &Api| submit(api, json!({"container_image": "tool"})).await;
    let refused = run(&alice).await.error_of(422);
    assert!(refused.contains("has been changed since"), "{refused}");
    assert!(
        refused.contains(tool["uuid"].as_str().unwrap()),
        "{refused}"
    );
    // Another change of the link does not give the name to the new content.
    let touched = json!({"link": {"properties": {"image_timestamp": "9999"}}});
    alice.put(&path(&name, "links"), touched).await.ok();
    run(&alice).await.error_of(422);
    // The old content is meant as long as it is to be had.
    image(&fixture, &uuid_of(&alice).await).await;
    let request = run(&alice).await.ok();
    let container = request["container_uuid"].as_str().unwrap();
    let container = fixture.admin.container(container).await;
    assert_eq!(container["container_image"], tool["portable_data_hash"]);
}

/// Otherwise whoever reads a request finds its secrets by trying.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_with_secrets_is_shared_with_its_own_user_only() {
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let [alice, bob] = fixture.plain_users(["alice", "bob"]).await;
    for api in [&alice, &bob] {
        image(&fixture, &uuid_of(api).await).await;
    }
    let with = |secret: &str| {
        json!({"container_image": pdh, "use_existing": true,
               "secret_mounts": {"/pin": {"kind": "text", "content": secret}}})
    };
    let container =
        async |api: &Api, extra: Value| submit(api, extra).await.ok()["container_uuid"].clone();
    let of_alice = container(&alice, with("0373")).await;
    assert_eq!(container(&alice, with("0373")).await, of_alice);
    assert_ne!(container(&bob, with("0373")).await, of_alice);
    let open = json!({"container_image": pdh, "use_existing": true});
    let shared = container(&alice, open.clone()).await;
    assert_eq!(
        container(&bob, open).await,
        shared,
        "there is no secret in it"
    );
}

/// A token that ends leaves nothing behind that can do more than before.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_widens_none_that_ends_later() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let make = async |attributes: Value| {
        let body = json!({"api_client_authorization": attributes});
        alice.post("api_client_authorizations", body).await.ok()
    };
    let narrow = make(json!({"scopes": ["GET /arvados/v1/users/current"]})).await;
    let ending = make(json!({"expires_at": "2098-01-01T00:00:00Z"})).await;
    let ending = alice.with_token(&v2(&ending));
    let path = format!(
        "api_client_authorizations/{}",
        narrow["uuid"].as_str().unwrap()
    );
    for (change, status) in [
        (json!({"scopes": ["all"]}), 403),
        (
            json!({"scopes": ["GET /arvados/v1/users/current", "GET /"]}),
            403,
        ),
        (
            json!({"scopes": ["all"], "expires_at": "2099-01-01T00:00:00Z"}),
            403,
        ),
        (json!({"scopes": ["all"], "expires_at": null}), 403),
        (json!({"scopes": []}), 200),
        (
            json!({"scopes": ["all"], "expires_at": "2097-01-01T00:00:00Z"}),
            200,
        ),
    ] {
        let answer = ending.put(&path, change.clone()).await;
        assert_eq!(answer.status, status, "{change}: {}", answer.body);
    }
}

/// The content of what is in a trashed project is nobody's to read before it is restored.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_in_a_trashed_project_is_signed_by_no_name() {
    let fixture = Fixture::new().await;
    let [alice, bob] = fixture.plain_users(["alice", "bob"]).await;
    let project = shared_project(&alice, &bob, "can_read").await;
    let record = image(&fixture, &project).await;
    let names = ["uuid", "portable_data_hash"].map(|name| record[name].as_str().unwrap());
    for is_trashed in [false, true] {
        if is_trashed {
            let project = format!("groups/{}", project.as_str().unwrap());
            alice.delete(&project).await.ok();
        }
        for (api, name) in [&alice, &bob]
            .into_iter()
            .flat_map(|api| names.map(|name| (api, name)))
        {
            let path = format!("collections/{name}?include_trash=true");
            let shown = api.get(&path).await;
            if shown.status == 404 {
                continue;
            }
            let text = shown.ok()["manifest_text"].to_string();
            assert_eq!(text.contains("+A"), !is_trashed, "{name}: {text}");
        }
    }
}

//! Registered workflows, as arvados-cwl-runner and arv-copy use them.

use serde_json::{Value, json};

use crate::fixture::{Api, Fixture};

async fn register(api: &Api, attributes: Value) -> Value {
    let body = json!({ "workflow": attributes });
    api.post("workflows", body).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_is_registered_found_changed_and_deleted() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let definition = "cwlVersion: v1.2\nclass: Workflow\nname: sort\ndescription: Sorts it.\n";
    let made = register(&user, json!({ "definition": definition })).await;
    let uuid = made["uuid"].as_str().unwrap();
    assert_eq!(&uuid[5..12], "-7fd4e-");
    assert_eq!(made["kind"], "arvados#workflow");
    assert_eq!(made["name"], "sort");
    assert_eq!(made["description"], "Sorts it.");
    assert_eq!(made["definition"], definition);
    let me = user.get("users/current").await.ok()["uuid"].clone();
    assert_eq!(made["owner_uuid"], me);

    let filters = json!({"filters": [["name", "=", "sort"], ["owner_uuid", "=", me]]});
    let list = user.list("workflows", filters).await.ok();
    assert_eq!(list["kind"], "arvados#workflowList");
    assert_eq!(list["items"][0]["uuid"], uuid);
    let path = format!("workflows/{uuid}");
    let change = json!({"workflow": {"name": "sort all"}});
    assert_eq!(user.put(&path, change).await.ok()["name"], "sort all");
    let change = json!({"workflow": {"definition": "name: other"}});
    assert_eq!(user.put(&path, change).await.ok()["name"], "sort all");

    user.delete(&path).await.ok();
    user.get(&path).await.error_of(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_workflow_can_have_is_refused() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let made = register(&user, json!({"definition": "a: 1"})).await;
    let path = format!("workflows/{}", made["uuid"].as_str().unwrap());
    for (attributes, words) in [
        (json!({"definition": "{"}), "Definition is not valid yaml"),
        (
            json!({"collection_uuid": "local-4zz18-000000000000000"}),
            "collection_uuid",
        ),
        (json!({"nonsense": 1}), "nonsense"),
    ] {
        let body = json!({ "workflow": attributes });
        let refused = user.post("workflows", body.clone()).await.error_of(422);
        assert!(refused.contains(words), "{refused}");
        let refused = user.put(&path, body).await.error_of(422);
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(user.get(&path).await.ok()["definition"], "a: 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_a_workflow_is_not_empty() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let group = json!({"group": {"name": "role", "group_class": "role"}});
    let role = user.post("groups", group).await.ok()["uuid"].clone();
    register(&user, json!({ "owner_uuid": role })).await;
    let path = format!("groups/{}", role.as_str().unwrap());
    let refused = user.delete(&path).await.error_of(422);
    assert!(refused.contains("workflows"), "{refused}");
}

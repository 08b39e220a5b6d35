//! What a collection was made from, and what was made from it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, submit};

/// A collection with a file of this name.
async fn collection(api: &Api, file: &str) -> Value {
    let text = format!(". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:{file}\n");
    let body = json!({"collection": {"name": file, "manifest_text": text}});
    api.post("collections", body).await.ok()
}

/// Runs a job that reads `input` and makes `output`. Its request when it has ended.
async fn step(fixture: &Fixture, mounts: Value, output: &Value) -> Value {
    let mut all = json!({"/out": {"kind": "tmp", "capacity": 1000}});
    for (path, mount) in mounts.as_object().unwrap() {
        all[path] = mount.clone();
    }
    let made = submit(&fixture.admin, json!({"mounts": all})).await.ok();
    let uuid = made["container_uuid"].as_str().unwrap();
    let pdh = output["portable_data_hash"].as_str().unwrap();
    fixture.admin.lock(uuid).await.ok();
    let running = json!({"state": "Running"});
    fixture.admin.change(uuid, running).await.ok();
    let done = json!({"state": "Complete", "exit_code": 0, "output": pdh});
    fixture.admin.change(uuid, done).await.ok();
    let path = format!("container_requests/{}", made["uuid"].as_str().unwrap());
    fixture.admin.get(&path).await.ok()
}

fn names(reply: &Value) -> BTreeSet<&str> {
    let found = reply.as_object().unwrap();
    for (name, record) in found {
        let named = [&record["uuid"], &record["portable_data_hash"]];
        assert!(
            named.iter().any(|known| **known == name.as_str()),
            "{name} {record}"
        );
        assert!(record.get("manifest_text").is_none(), "{record}");
    }
    found.keys().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_and_outputs_are_followed_over_any_number_of_steps() {
    let fixture = Fixture::new().await;
    let image = fixture.image().await;
    let raw = collection(&fixture.admin, "raw").await;
    let clean = collection(&fixture.admin, "clean").await;
    let report = collection(&fixture.admin, "report").await;
    let pdh = |collection: &Value| {
        collection["portable_data_hash"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let input = json!({"/in": {"kind": "collection", "portable_data_hash": pdh(&raw)}});
    let first = step(&fixture, input, &clean).await;
    // As arvados-cwl-runner writes its inputs.
    let content = format!("{{\"location\": \"keep:{}/clean\"}}", pdh(&clean));
    let input = json!({"/var/lib/cwl/input.json": {"kind": "json", "content": content}});
    let second = step(&fixture, input, &report).await;

    let (made, one, two) = (
        second["output_uuid"].as_str().unwrap(),
        first["container_uuid"].as_str().unwrap(),
        second["container_uuid"].as_str().unwrap(),
    );
    let request = second["uuid"].as_str().unwrap();
    let (raw_pdh, clean_pdh, report_pdh) = (pdh(&raw), pdh(&clean), pdh(&report));
    let get = async |path: String| fixture.admin.get(&path).await.ok();
    let from = get(format!("collections/{made}/provenance")).await;
    let expected = [made, request, &clean_pdh, one, &raw_pdh, &image];
    assert_eq!(names(&from), expected.into());
    assert_eq!(from[&raw_pdh]["name"], "raw");
    assert_eq!(from[one]["kind"], "arvados#container");
    // By content: whichever container has made it.
    let from = get(format!("collections/{report_pdh}/provenance")).await;
    let expected = [&*report_pdh, two, &clean_pdh, one, &raw_pdh, &image];
    assert_eq!(names(&from), expected.into());

    let uuid = raw["uuid"].as_str().unwrap();
    let used = get(format!("collections/{uuid}/used_by")).await;
    let expected = [&*raw_pdh, one, &clean_pdh, two, &report_pdh];
    assert_eq!(names(&used), expected.into());

    // What a program other than a container made of it.
    let copy = collection(&fixture.admin, "copy").await;
    let link = json!({"link_class": "provenance", "name": "made",
                      "tail_uuid": raw["uuid"], "head_uuid": copy["uuid"]});
    let link = fixture.admin.post("links", json!({ "link": link }));
    let (link, copy_pdh) = (link.await.ok(), pdh(&copy));
    let (link, copy) = (
        link["uuid"].as_str().unwrap(),
        copy["uuid"].as_str().unwrap(),
    );
    let from = get(format!("collections/{copy}/provenance")).await;
    assert_eq!(names(&from), [copy, link, uuid].into());
    let used = get(format!("collections/{uuid}/used_by")).await;
    let expected = [
        &*raw_pdh,
        link,
        &copy_pdh,
        one,
        &clean_pdh,
        two,
        &report_pdh,
    ];
    assert_eq!(names(&used), expected.into());

    let nothing = fixture
        .admin
        .get("collections/d41d8cd98f00b204e9800998ecf8427e+9/used_by");
    nothing.await.error_of(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_or_follows_what_they_may_not_read() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let raw = collection(&fixture.admin, "raw").await;
    let clean = collection(&fixture.admin, "clean").await;
    let pdh = raw["portable_data_hash"].as_str().unwrap();
    let input = json!({"/in": {"kind": "collection", "portable_data_hash": pdh}});
    let done = step(&fixture, input, &clean).await;

    let plain = fixture.plain_user("plain").await;
    let me = plain.get("users/current").await.ok()["uuid"].clone();
    let grant = json!({"link": {"link_class": "permission", "name": "can_read",
                                "tail_uuid": me, "head_uuid": done["output_uuid"]}});
    fixture.admin.post("links", grant).await.ok();
    let uuid = done["output_uuid"].as_str().unwrap();
    let path = format!("collections/{uuid}/provenance");
    let seen = plain.get(&path).await.ok();
    assert_eq!(names(&seen), [uuid].into());
    plain
        .get(&format!("collections/{pdh}/used_by"))
        .await
        .error_of(404);

    // A token for collections gets collections only, though its user may read the rest.
    let scopes = json!(["GET /arvados/v1/collections/"]);
    let scoped = fixture.token(json!({"scopes": scopes})).await;
    assert_eq!(names(&scoped.get(&path).await.ok()), [uuid].into());
    let used = format!("collections/{}/used_by", raw["uuid"].as_str().unwrap());
    assert_eq!(names(&scoped.get(&used).await.ok()), [pdh].into());
    assert!(names(&fixture.admin.get(&used).await.ok()).len() > 1);
}

/// Two searches at once, after at most this many of each client.
const MAX_SEARCHES: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn a_second_search_is_told_to_come_again() {
    let fixture = Fixture::new().await;
    let raw = collection(&fixture.admin, "raw").await;
    let path = format!("collections/{}/used_by", raw["uuid"].as_str().unwrap());
    let refused = Arc::new(AtomicBool::new(false));
    let clients = (0..8).map(|_| {
        let (api, path, refused) = (fixture.admin.clone(), path.clone(), refused.clone());
        tokio::spawn(async move {
            for _ in 0..MAX_SEARCHES {
                if refused.load(Relaxed) {
                    break;
                }
                let request = api.raw(Method::GET, &format!("/arvados/v1/{path}"));
                let response = request.send().await.unwrap();
                match response.status().as_u16() {
                    503 => {
                        assert_eq!(response.headers()["retry-after"], "1");
                        refused.store(true, Relaxed);
                    }
                    status => assert_eq!(status, 200),
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    assert!(refused.load(Relaxed), "no two searches went on at once");
    fixture.admin.get(&path).await.ok();
}

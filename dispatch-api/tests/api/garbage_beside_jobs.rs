//! What is freed while a container runs: what was removed, and not what the container has stored.

use std::collections::BTreeSet;

use serde_json::json;

use crate::fixture::{Fixture, request, submit};
use crate::garbage::{collect, make_old, manifest, name, path_of, put, save, state_of, stored};

#[tokio::test(flavor = "multi_thread")]
async fn a_long_job_keeps_no_removed_collection_in_the_trash() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let image = save(&alice, &[put(&alice, "image").await]).await;
    let removed = save(&alice, &[put(&alice, "removed").await]).await;
    make_old(&stored(&state_of(&fixture))[&name("removed")]);
    let request = json!({"container_image": image["portable_data_hash"], "use_existing": false});
    let request = submit(&alice, request).await.ok();
    let container = request["container_uuid"].as_str().unwrap();
    fixture.admin.lock(container).await.ok();
    let running = json!({"state": "Running"});
    fixture.admin.change(container, running).await.ok();

    // crunch-run creates its output in the trash, before the record names it.
    let mut output = manifest(&[put(&alice, "output").await]);
    output["collection"]["is_trashed"] = json!(true);
    alice.post("collections", output).await.ok();
    put(&alice, "part of an output").await;
    alice.delete(&path_of(&removed)).await.ok();
    let report = collect(&fixture, 0, true, false).await;
    let of = |key: &str| report[key].as_u64().unwrap();
    assert_eq!((of("collections"), of("blocks")), (1, 1), "{report}");
    assert_eq!((of("kept_trash"), of("held_blocks")), (1, 1), "{report}");
    let left = stored(&state_of(&fixture));
    for kept in ["image", "output", "part of an output"] {
        assert!(left.contains_key(&name(kept)), "{kept}");
    }

    let ended = json!({"state": "Cancelled"});
    fixture.admin.change(container, ended).await.ok();
    let report = collect(&fixture, 0, true, false).await;
    assert_eq!(report["collections"], 1, "{report}");
    assert_eq!(stored(&state_of(&fixture)).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_unfinished_container_needs_stays() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let input = save(&alice, &[put(&alice, "input").await]).await;
    let image = save(&alice, &[put(&alice, "image").await]).await;
    let mounts = json!({
        "/out": {"kind": "tmp", "capacity": 1000},
        "/in": {"kind": "collection", "portable_data_hash": input["portable_data_hash"]},
    });
    let job = request(
        json!({"container_image": image["portable_data_hash"], "mounts": mounts,
                             "container_count_max": 1}),
    );
    let job = alice.post("container_requests", job).await.ok();
    let container = job["container_uuid"].as_str().unwrap();
    for collection in [&input, &image] {
        alice.delete(&path_of(collection)).await.ok();
    }
    assert_eq!(collect(&fixture, 0, true, false).await["collections"], 0);
    // A queued container whose request was deleted never runs.
    let other = save(&alice, &[put(&alice, "other").await]).await;
    let forgotten = request(json!({"container_image": other["portable_data_hash"]}));
    let forgotten = alice.post("container_requests", forgotten).await.ok();
    alice.delete(&path_of(&other)).await.ok();
    assert_eq!(collect(&fixture, 0, true, false).await["collections"], 0);
    let forgotten = forgotten["uuid"].as_str().unwrap();
    alice
        .delete(&format!("container_requests/{forgotten}"))
        .await
        .ok();
    assert_eq!(collect(&fixture, 0, true, false).await["collections"], 1);
    fixture.admin.lock(container).await.ok();
    let running = json!({"state": "Running"});
    fixture.admin.change(container, running).await.ok();
    // A part of an output that is not saved yet, and one of an earlier container.
    put(&alice, "output").await;
    put(&alice, "before").await;
    make_old(&stored(&state_of(&fixture))[&name("before")]);
    let report = collect(&fixture, 0, true, false).await;
    assert_eq!(
        (&report["collections"], &report["blocks"]),
        (&json!(0), &json!(1))
    );
    let left: BTreeSet<String> = stored(&state_of(&fixture)).into_keys().collect();
    assert_eq!(left, BTreeSet::from(["input", "image", "output"].map(name)));
    let ended = json!({"state": "Cancelled"});
    fixture.admin.change(container, ended).await.ok();
    let report = collect(&fixture, 0, true, false).await;
    assert_eq!(
        (&report["collections"], &report["blocks"]),
        (&json!(2), &json!(3))
    );
}

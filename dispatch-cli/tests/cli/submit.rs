//! `dispatch submit`: flags become a container request.

use std::collections::BTreeSet;

use arvados_client::filter::Query;
use arvados_client::records::Collection;
use serde_json::{Value, json};

use crate::fixture::{Fixture, run};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_what_its_flags_say() {
    let fixture = Fixture::with_image().await;
    let made = fixture
        .run(&[
            "submit",
            "--image",
            "tool",
            "--cpus",
            "2",
            "--memory",
            "1GiB",
            "--scratch",
            "2GiB",
            "--time",
            "1h30m",
            "--priority",
            "7",
            "--env",
            "A=b",
            "--network",
            "--partition",
            "short",
            "--partition",
            "long",
            "--retries",
            "1",
            "--gpus",
            "rocm:2",
            "--gpu-target",
            "gfx90a",
            "--name",
            "my job",
            "--",
            "/bin/tool",
            "--flag",
            "a b",
        ])
        .await
        .ok();
    let (id, uuid) = made.trim().split_once(' ').unwrap();
    assert_eq!(id, "1");
    let shown = fixture.run(&["--json", "show", "1"]).await.json();
    let request = &shown["request"];
    assert_eq!(request["uuid"], uuid);
    assert_eq!(request["name"], "my job");
    assert_eq!(request["priority"], 7);
    assert_eq!(request["command"], json!(["/bin/tool", "--flag", "a b"]));
    assert_eq!(request["environment"], json!({"A": "b"}));
    assert_eq!(request["runtime_constraints"]["vcpus"], 2);
    assert_eq!(request["runtime_constraints"]["ram"], 1u64 << 30);
    assert_eq!(request["runtime_constraints"]["API"], true);
    let gpu = &request["runtime_constraints"]["gpu"];
    assert_eq!(
        (&gpu["stack"], &gpu["device_count"]),
        (&json!("rocm"), &json!(2))
    );
    assert_eq!(gpu["hardware_target"], json!(["gfx90a"]));
    assert_eq!(request["scheduling_parameters"]["max_run_time"], 5400);
    let partitions = &request["scheduling_parameters"]["partitions"];
    assert_eq!(*partitions, json!(["short", "long"]));
    assert_eq!(request["container_count_max"], 2);
    assert_eq!(request["mounts"]["/out"]["capacity"], 2u64 << 30);
    assert_eq!(shown["state"], "Queued");
}

/// A server whose site has no preemptible nodes says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_preemptible_job_needs_a_site_with_such_nodes() {
    let fixture = Fixture::with_image().await;
    let submit = ["submit", "--image", "tool", "--preemptible", "--", "true"];
    let refused = fixture.run(&submit).await;
    refused.says(1, &["preemptible", "not configured on this server"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_are_collections_or_uploaded() {
    let fixture = Fixture::with_image().await;
    std::fs::write(fixture.path("one.txt"), "one").unwrap();
    std::fs::create_dir_all(fixture.path("many/sub")).unwrap();
    std::fs::write(fixture.path("many/sub/two.txt"), "two").unwrap();
    let stored = fixture.store(&[("dir/file", "x")]).await;
    let inside = format!("part={stored}:dir");
    let made = fixture
        .run(&[
            "--json",
            "submit",
            "--image",
            "tool",
            "--input",
            "one=one.txt",
            "--input",
            "/many=many",
            "--input",
            &inside,
            "--stdin",
            "one.txt",
            "--",
            "tool",
        ])
        .await
        .json();
    let uuid = made["uuid"].as_str().unwrap();
    let shown = fixture.run(&["--json", "show", uuid]).await.json();
    let mounts = &shown["request"]["mounts"];
    assert_eq!(mounts["/input/one"]["path"], "one.txt");
    assert_eq!(mounts["/input/part"]["portable_data_hash"], stored);
    assert_eq!(mounts["/input/part"]["path"], "dir");
    assert_eq!(mounts["stdin"]["path"], "one.txt");
    let many = mounts["/many"]["portable_data_hash"].as_str().unwrap();
    let listed = fixture.run(&["--json", "get", "--list", many]).await.json();
    assert_eq!(listed, json!([{"path": "sub/two.txt", "size": 3}]));
}

/// The number or uuid of a job means its output, unless a file here has that name.
#[tokio::test(flavor = "multi_thread")]
async fn an_input_is_the_output_of_a_job() {
    let fixture = Fixture::with_image().await;
    let submit = async |more: &[&str]| {
        let start = ["--json", "submit", "--image", "tool"];
        fixture
            .run(&[&start[..], more, &["--", "tool"]].concat())
            .await
    };
    let first = fixture.submit("first").await;
    let early = submit(&["--input", "a=1"]).await;
    early.says(3, &["job 1 has no output", "dispatch wait 1"]);
    fixture.start(&first).await;
    fixture.finish(&first, 0, &[("dir/file", "x")], &[]).await;
    let (part, all) = ("a=1:dir", format!("b={}", first.uuid));
    let used = ["--input", part, "--input", &all, "--stdin", "1:dir/file"];
    let made = submit(&used).await.json();
    let shown = fixture
        .run(&["--json", "show", made["uuid"].as_str().unwrap()])
        .await
        .json();
    let mounts = &shown["request"]["mounts"];
    let stored = fixture.store(&[("dir/file", "x")]).await;
    for (mount, path) in [
        ("/input/a", json!("dir")),
        ("/input/b", json!("")),
        ("stdin", json!("dir/file")),
    ] {
        assert_eq!(
            mounts[mount]["portable_data_hash"], stored,
            "{mount}: {mounts}"
        );
        assert_eq!(
            mounts[mount]["path"].as_str().unwrap_or(""),
            path,
            "{mount}"
        );
    }
    let whole = submit(&["--stdin", "1"]).await;
    whole.says(1, &["1 is a directory where one file is needed"]);
    let outside = submit(&["--input", "a=1:dir/../.."]).await;
    outside.says(2, &["leave . and .. out"]);
    submit(&["--input", "a=1:/dir/"]).await.ok();
    let missing = submit(&["--input", "a=1:nothing"]).await;
    missing.says(3, &["there is no \"nothing\""]);
    submit(&["--input", "a=99"])
        .await
        .says(3, &["99 does not exist on this machine"]);
    std::fs::write(fixture.path("1"), "a file here").unwrap();
    let made = submit(&["--input", "a=1"]).await.json();
    let shown = fixture
        .run(&["--json", "show", made["uuid"].as_str().unwrap()])
        .await
        .json();
    assert_eq!(shown["request"]["mounts"]["/input/a"]["path"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_collection_is_given_a_name_that_servers_refuse() {
    let fixture = Fixture::with_image().await;
    fixture
        .run(&["image", "add", "acme/other:v1", "root/../root"])
        .await
        .ok();
    std::fs::create_dir(fixture.path("new")).unwrap();
    std::fs::write(fixture.path("new/tool"), "another image").unwrap();
    fixture
        .run(&["image", "add", "acme/tool:v1", "new"])
        .await
        .ok();
    let line = "submit --image tool --name a/b --input text=new/tool --input /ref/x=new/tool --stdin new/tool -- /bin/sh";
    let args: Vec<&str> = line.split(' ').collect();
    fixture.run(&args).await.ok();
    let shown = fixture.run(&["--json", "show", "1"]).await.json();
    assert_eq!(shown["request"]["name"], "a/b", "a job may be called so");
    assert_eq!(shown["request"]["output_name"], "Output of a_b");
    let collections: Vec<Collection> = fixture
        .user
        .all("collections", Query::new(), |c: &Collection| &c.uuid)
        .await
        .unwrap();
    let names: BTreeSet<&str> = collections.iter().map(|c| c.name.as_str()).collect();
    for name in [
        "Input text of a_b",
        "Input ref_x of a_b",
        "Standard input of a_b",
    ] {
        assert!(names.contains(name), "{names:?}");
    }
    let image = names
        .iter()
        .any(|n| n.starts_with("Docker image acme_tool:v1"));
    assert!(image, "{names:?}");
    assert!(!names.iter().any(|name| name.contains('/')), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_can_be_piped() {
    let fixture = Fixture::with_image().await;
    let mut command = fixture.command(&["submit", "--image", "tool", "--stdin", "-", "--", "tool"]);
    command.write_stdin("piped words");
    run(command).await.ok();
    let shown = fixture.run(&["--json", "show", "1"]).await.json();
    let stdin = &shown["request"]["mounts"]["stdin"];
    let file = format!(
        "{}:{}",
        stdin["portable_data_hash"].as_str().unwrap(),
        stdin["path"].as_str().unwrap()
    );
    assert_eq!(fixture.run(&["get", &file, "-"]).await.ok(), "piped words");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_a_name_a_uuid_or_a_hash() {
    let fixture = Fixture::with_image().await;
    let listed = fixture.run(&["--json", "image", "list"]).await.json();
    let image = &listed[0];
    for name in [
        "tool",
        "tool:latest",
        image["collection"].as_str().unwrap(),
        image["portable_data_hash"].as_str().unwrap(),
    ] {
        fixture
            .run(&["submit", "--image", name, "--", "tool"])
            .await
            .ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_get_different_numbers() {
    let fixture = Fixture::with_image().await;
    let runs: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn(run(
                fixture.command(&["--json", "submit", "--image", "tool", "--", "tool"])
            ))
        })
        .collect();
    let mut numbers = BTreeSet::new();
    for done in runs {
        numbers.insert(done.await.unwrap().json()["id"].as_u64().unwrap());
    }
    assert_eq!(numbers.len(), 8, "{numbers:?}");
    let listed = fixture.run(&["--json", "list"]).await.json();
    let ids: BTreeSet<u64> = listed
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|job| job["id"].as_u64())
        .collect();
    assert_eq!(ids, numbers, "what was told is what the server keeps");
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_jobs_run_again_unless_reuse_is_asked_for() {
    let fixture = Fixture::with_image().await;
    let container = async |flags: &[&str]| -> Value {
        let args = [
            &["--json", "submit", "--image", "tool"],
            flags,
            &["--", "tool"],
        ]
        .concat();
        fixture.run(&args).await.json()["container_uuid"].clone()
    };
    let first = container(&[]).await;
    assert_ne!(container(&[]).await, first);
    assert_ne!(container(&["--reuse", "--cpus", "2"]).await, first);
    let reused = container(&["--reuse", "--cpus", "2"]).await;
    assert_eq!(container(&["--reuse", "--cpus", "2"]).await, reused);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_starts_where_the_flag_says() {
    let fixture = Fixture::with_image().await;
    for (flags, expected) in [
        (vec![], "/out"),
        (vec!["--workdir", "/data"], "/data"),
        (vec!["--workdir", "."], "."),
    ] {
        let line = [
            &["--json", "submit", "--image", "tool"],
            &flags[..],
            &["--", "tool"],
        ]
        .concat();
        let made = fixture.run(&line).await.json();
        let uuid = made["uuid"].as_str().unwrap();
        let shown = fixture.run(&["--json", "show", uuid]).await.json();
        assert_eq!(shown["request"]["cwd"], expected, "{flags:?}");
    }
}

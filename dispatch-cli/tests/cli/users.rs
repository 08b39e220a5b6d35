//! Several people on one server: users, their tokens, and what they see of each other.

use arvados_client::filter::Query;
use arvados_client::records::Link;
use serde_json::{Value, json};

use crate::fixture::{Fixture, run};

/// Adds a user and makes a token for it.
async fn add_user(fixture: &Fixture, name: &str) -> String {
    let added = run(fixture.admin_command(&["user", "add", name])).await;
    assert!(added.err.contains("dispatch user token"), "{added:?}");
    assert_eq!(added.ok(), "");
    let made = run(fixture.admin_command(&["user", "token", name])).await;
    assert!(made.err.contains("not shown again"), "{made:?}");
    assert!(!made.err.contains(made.out.trim()), "{made:?}");
    made.ok().trim().to_owned()
}

fn secret(token: &str) -> &str {
    token.rsplit('/').next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_sees_nothing_of_anothers_jobs() {
    let fixture = Fixture::new().await;
    let (ana, bob) = (
        add_user(&fixture, "ana").await,
        add_user(&fixture, "bob").await,
    );
    let as_ana = |args: &[&str]| run(fixture.command_with(&ana, args));
    let as_bob = |args: &[&str]| run(fixture.command_with(&bob, args));
    let root = fixture.path("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("tool"), "not run in these tests").unwrap();
    let root = root.to_str().unwrap();
    as_ana(&["image", "add", "tool", root]).await.ok();
    let submit = ["--json", "submit", "--image", "tool", "--", "tool"];
    let job = as_ana(&submit).await.json();
    let (job, container) = (&job["uuid"], &job["container_uuid"]);
    let (job, container) = (job.as_str().unwrap(), container.as_str().unwrap());
    as_ana(&["show", job]).await.ok();

    assert_eq!(as_bob(&["--json", "list"]).await.ok().trim(), "[]");
    for args in [
        ["show", job],
        ["show", container],
        ["logs", job],
        ["kill", job],
    ] {
        as_bob(&args).await.says(3, &["there is no job", args[1]]);
    }
    as_bob(&submit).await.says(3, &["no image", "tool"]);
    let users = as_bob(&["user", "list"]).await;
    users.says(4, &["only an administrator", "bob"]);
    let theirs = as_bob(&["--json", "token", "list"]).await.json();
    assert_eq!(theirs.as_array().unwrap().len(), 1, "{theirs}");
    let ana_s = as_ana(&["--json", "token", "list"]).await.json();
    let uuid = ana_s[0]["uuid"].as_str().unwrap();
    as_bob(&["token", "revoke", uuid])
        .await
        .says(3, &["there is no token", uuid]);
    as_ana(&["show", job]).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_command_of_a_disabled_user_is_refused_and_says_why() {
    let fixture = Fixture::new().await;
    let (ana, bob) = (
        add_user(&fixture, "ana").await,
        add_user(&fixture, "bob").await,
    );
    run(fixture.command_with(&ana, &["list"])).await.ok();
    let disabled = run(fixture.admin_command(&["user", "disable", "ana"])).await;
    assert!(disabled.err.contains("ana is disabled"), "{disabled:?}");
    disabled.ok();
    for args in [&["list"][..], &["token", "create"]] {
        let refused = run(fixture.command_with(&ana, args)).await;
        refused.says(4, &["user ana is disabled", "ask an administrator"]);
    }
    run(fixture.command_with(&bob, &["list"])).await.ok();
    for args in [["user", "token", "ana"], ["user", "add", "ana"]] {
        let refused = run(fixture.admin_command(&args)).await;
        refused.says(1, &["user ana is disabled"]);
    }
    let users = run(fixture.admin_command(&["user", "list"])).await.ok();
    let role = |name: &str| {
        let row = users.lines().find(|row| row.starts_with(name)).unwrap();
        row.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(
        ["ana", "bob", "root"].map(role),
        ["disabled", "user", "administrator"]
    );
    let list = run(fixture.command_with(&bob, &["--admin", "list"])).await;
    list.says(4, &["only an administrator", "user bob"]);
    let none = run(fixture.admin_command(&["show", "7"])).await;
    none.says(3, &["no job 7 of the administrator", "give its uuid"]);
    let enabled = run(fixture.admin_command(&["user", "enable", "ana"])).await;
    assert!(enabled.err.contains("user ana is enabled"), "{enabled:?}");
    run(fixture.command_with(&ana, &["list"])).await.ok();
    let nobody = run(fixture.admin_command(&["user", "enable", "nobody"])).await;
    nobody.says(3, &["no user nobody"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_shown_once_and_does_what_its_scopes_permit_until_it_is_revoked() {
    let fixture = Fixture::new().await;
    let ana = add_user(&fixture, "ana").await;
    let as_ana = |args: &[&str]| run(fixture.command_with(&ana, args));
    let scope = "GET /arvados/v1/users/current";
    let create = [
        "--json",
        "token",
        "create",
        "--scope",
        scope,
        "--expires",
        "1h",
    ];
    let made = as_ana(&create).await.json();
    let (uuid, token) = (
        made["uuid"].as_str().unwrap(),
        made["token"].as_str().unwrap(),
    );
    assert!(token.starts_with(&format!("v2/{uuid}/")), "{uuid}");
    assert_eq!(made["scopes"], serde_json::json!([scope]));
    assert!(made["expires_at"].is_string(), "{made}");

    let listed = as_ana(&["--json", "token", "list"]).await.json();
    let text = listed.to_string() + &as_ana(&["token", "list"]).await.ok();
    assert!(!text.contains(secret(token)) && !text.contains(secret(&ana)));
    let rows = listed.as_array().unwrap();
    let in_use: Vec<&Value> = rows.iter().map(|row| &row["in_use_here"]).collect();
    assert_eq!(in_use, [true, false], "{listed}");

    let limited = || run(fixture.command_with(token, &["list"]));
    limited().await.says(4, &["may not do this"]);
    let revoked = as_ana(&["token", "revoke", uuid]).await;
    assert!(revoked.err.contains("is revoked"), "{revoked:?}");
    limited().await.says(4, &["does not accept the token"]);
    as_ana(&["token", "revoke", uuid])
        .await
        .says(3, &["there is no token", "dispatch token list"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_about_users_are_named() {
    let fixture = Fixture::new().await;
    add_user(&fixture, "ana").await;
    let as_admin = |args: &[&str]| run(fixture.admin_command(args));
    as_admin(&["user", "add", "ana"])
        .await
        .says(1, &["user ana exists already", "dispatch user token ana"]);
    for args in [["user", "token", "eve"], ["user", "disable", "eve"]] {
        as_admin(&args)
            .await
            .says(3, &["there is no user eve", "dispatch user list"]);
    }
    as_admin(&["user", "disable", "root"])
        .await
        .says(1, &["cannot disable itself"]);
    for (args, word) in [
        (&["user", "add", "a-b"][..], "letters and digits"),
        (
            &["token", "create", "--scope", "everything"],
            "a method and a path",
        ),
        (&["token", "create", "--expires", "30"], "unit"),
        (&["token", "revoke", "nonsense"], "nonsense"),
    ] {
        let refused = as_admin(args).await;
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.err.contains(word), "no {word:?} in {refused:?}");
    }
    let added = as_admin(&["--json", "user", "add", "eve", "--email", "eve@example.org"]).await;
    let eve = added.json();
    assert_eq!(eve["email"], "eve@example.org");
    assert_eq!(eve["is_admin"], false);
}

/// An ordinary user sees, uses and cannot remove an image that the administrator added for all.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_for_all_users_is_there_for_a_new_user() {
    let fixture = Fixture::new().await;
    let as_admin = |args: &[&str]| run(fixture.admin_command(args));
    let ana = add_user(&fixture, "ana").await;
    let as_ana = |args: &[&str]| run(fixture.command_with(&ana, args));
    let root = fixture.path("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("tool"), "not run in these tests").unwrap();
    let root = root.to_str().unwrap();
    let submit = ["--json", "submit", "--image", "tool", "--", "tool"];

    as_admin(&["image", "add", "tool", root]).await.ok();
    assert_eq!(as_ana(&["--json", "image", "list"]).await.json(), json!([]));
    as_ana(&submit).await.says(3, &["no image", "tool"]);
    // The same image once more, and once more again: it is shared, and only once.
    let share = ["--json", "image", "add", "--all-users", "tool", root];
    let stored = as_admin(&share).await.json();
    assert_eq!(
        (&stored["was_stored"], &stored["all_users"]),
        (&json!(true), &json!(true))
    );
    as_admin(&share).await.json();
    let shown = as_admin(&["image", "add", "--all-users", "tool", root]).await;
    assert!(
        shown.err.contains("is now tool:latest, for all users"),
        "{shown:?}"
    );
    let links = Query::new().filter("link_class", "=", "permission");
    let links = links.filter("head_uuid", "=", stored["uuid"].as_str().unwrap());
    let links = fixture
        .dispatch
        .page::<Link>("links", &links)
        .await
        .unwrap();
    assert_eq!(links.items.len(), 1, "{links:?}");

    let seen = as_ana(&["--json", "image", "list"]).await.json();
    assert_eq!(seen[0]["collection"], stored["uuid"], "{seen}");
    let job = as_ana(&submit).await.json();
    let shown = as_ana(&["--json", "show", job["uuid"].as_str().unwrap()])
        .await
        .json();
    let used = &shown["container"]["container_image"];
    assert_eq!(used, &stored["portable_data_hash"], "{shown}");

    let removed = as_ana(&["image", "rm", "tool"]).await;
    removed.says(
        4,
        &[
            "tool:latest is not yours",
            "dispatch --admin image rm tool:latest",
        ],
    );
    std::fs::write(fixture.path("root/more"), "another image").unwrap();
    as_ana(&["image", "add", "own", root]).await.ok();
    let removed = as_ana(&["image", "rm", "own"]).await;
    assert!(removed.err.contains("stays in the trash"), "{removed:?}");
    let shared = as_ana(&["image", "add", "--all-users", "mine", root]).await;
    shared.says(4, &["only an administrator", "ana"]);
    let seen = as_ana(&["--json", "image", "list"]).await.json();
    assert_eq!(seen.as_array().unwrap().len(), 1, "{seen}");
}

/// A real Arvados shows the name of an image only to those who may read the owner of its link.
#[tokio::test(flavor = "multi_thread")]
async fn on_arvados_the_name_of_an_image_is_not_for_all_users() {
    let fixture = Fixture::as_arvados_with_image().await;
    let root = fixture.path("root");
    let share = [
        "image",
        "add",
        "--all-users",
        "tool",
        root.to_str().unwrap(),
    ];
    let shown = run(fixture.admin_command(&share)).await;
    let words = "all users can read it, but this server shows the name to you alone";
    assert!(shown.err.contains(words), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stopped_the_job_of_another_user_is_named() {
    let fixture = Fixture::with_image().await;
    for name in ["a", "b"] {
        fixture.submit(name).await;
    }
    fixture.run(&["kill", "1"]).await.ok();
    let own = fixture.run(&["explain", "1"]).await.ok();
    assert!(
        own.starts_with("Job 1 was stopped with 'dispatch kill'; "),
        "{own}"
    );
    let shown = fixture.run(&["--json", "show", "2"]).await.json();
    let uuid = shown["request"]["uuid"].clone();
    run(fixture.admin_command(&["kill", uuid.as_str().unwrap()]))
        .await
        .ok();
    let other = fixture.run(&["explain", "2"]).await.ok();
    let sentence = "Job 2 was stopped with 'dispatch kill' by user root; ";
    assert!(other.starts_with(sentence), "{other}");
    let waited = fixture.run(&["wait", "2"]).await;
    assert_eq!(waited.err, "dispatch: job 2 was cancelled by user root\n");
}

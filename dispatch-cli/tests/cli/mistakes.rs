//! Errors: one sentence with a remedy, and an exit status for scripts.

use arvados_client::api::NewToken;
use assert_cmd::Command;
use jiff::{Timestamp, ToSpan};

use crate::fixture::{CommandResult, Fixture, bare, run};

#[tokio::test(flavor = "multi_thread")]
async fn things_that_do_not_exist() {
    let fixture = Fixture::with_image().await;
    let pdh = fixture.store(&[("file", "x")]).await;
    let gone = "local-4zz18-000000000000000";
    let (not_there, no_path) = ("not a collection that exists", "no \"none\" in collection");
    let rows = [
        (
            format!("submit --image tool --input a={gone} -- x"),
            not_there,
        ),
        (
            format!("submit --image tool --input a={pdh}:none -- x"),
            no_path,
        ),
        (
            "submit --image tool --input a=none.txt -- x".into(),
            "none.txt does not exist",
        ),
        (
            "submit --image tool --stdin none.txt -- x".into(),
            "none.txt does not exist",
        ),
        (format!("submit --image {gone} -- x"), not_there),
        ("show 99".into(), "no job 99; see them with: dispatch list"),
        (
            "show local-xvhdp-000000000000000".into(),
            "no job local-xvhdp",
        ),
        (
            "logs local-dz642-000000000000000".into(),
            "no job local-dz642",
        ),
        ("kill 99".into(), "no job 99"),
        (format!("get {gone}"), not_there),
        (format!("get {pdh}:none"), no_path),
        ("put none.txt".into(), "none.txt does not exist"),
    ];
    for (line, words) in rows {
        let args: Vec<&str> = line.split(' ').collect();
        fixture.run(&args).await.says(3, &[words]);
    }
    let unknown = fixture
        .run(&["submit", "--image", "none:1", "--", "x"])
        .await;
    unknown.says(3, &["no image \"none:1\"", "dispatch image add none:1"]);
    let other_tag = fixture
        .run(&["submit", "--image", "tool:2", "--", "x"])
        .await;
    other_tag.says(3, &["stored on this server (there is tool:latest)"]);
    std::fs::write(fixture.path("large"), "x").unwrap();
    let before = fixture
        .run(&["submit", "--image", "none", "--input", "a=large", "--", "x"])
        .await;
    before.says(3, &["no image \"none\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn command_lines_that_make_no_sense() {
    let fixture = Fixture::with_image().await;
    let put = fixture
        .run(&["put", "--name", "a/b", "/etc/hostname"])
        .await;
    assert_eq!(put.code, 2, "{put:?}");
    let sentence = "the name of a collection cannot contain a /: write \"a_b\"";
    assert!(put.err.contains(sentence), "{put:?}");
    for (flags, word) in [
        (&["--memory", "4"][..], "write 4GiB"),
        (&["--scratch", "10"], "write 10GiB"),
        (&["--time", "4"], "write 4s, 4m, 4h or 4d"),
        (&["--memory", "much"], "is not a size"),
        (&["--env", "A"], "NAME=VALUE"),
        (&["--input", "a"], "NAME=COLLECTION"),
        (
            &[
                "--input",
                "a=/etc/hostname",
                "--input",
                "/input/a=/etc/hostname",
            ],
            "given twice",
        ),
        (&["--output-path", "out"], "below /"),
    ] {
        let args = [&["submit", "--image", "tool"], flags, &["--", "x"]].concat();
        let done = fixture.run(&args).await;
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains(word), "no {word:?} in {done:?}");
    }
    let done = fixture.run(&["show", "seven"]).await;
    done.says(3, &["no job with the name \"seven\""]);
    let done = fixture.run(&["kill", "seven"]).await;
    assert_eq!(done.code, 2);
    assert!(done.err.contains("\"seven\" is not a job"), "{done:?}");
    assert!(done.err.contains("--name seven"), "{done:?}");
    assert_eq!(
        fixture.run(&["--json", "list"]).await.ok().trim(),
        "[]",
        "nothing was submitted"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_are_no_good() {
    let fixture = Fixture::new().await;
    let with = |token: &str| -> Command {
        let mut command = fixture.command(&["list"]);
        command.env("ARVADOS_API_TOKEN", token);
        command
    };
    run(with("nonsense"))
        .await
        .says(4, &["does not accept the token", "ARVADOS_API_TOKEN"]);
    let expires_at = Timestamp::now() + 1.second();
    let scopes = vec!["all".to_owned()];
    let made = fixture
        .user
        .create_token(&NewToken { scopes, expires_at })
        .await
        .unwrap();
    let token = made.token().unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let refused = run(with(token.expose())).await;
    assert!(
        !refused
            .err
            .contains(token.expose().rsplit('/').next().unwrap()),
        "a secret was printed"
    );
    refused.says(4, &["expired"]);
    let scopes = vec!["GET /arvados/v1/users/current".to_owned()];
    let expires_at = Timestamp::now() + 1.hour();
    let made = fixture
        .user
        .create_token(&NewToken { scopes, expires_at })
        .await
        .unwrap();
    run(with(made.token().unwrap().expose()))
        .await
        .says(4, &["may not do this"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_not_there() {
    let fixture = Fixture::new().await;
    let mut command = fixture.command(&["list"]);
    command.env("ARVADOS_API_HOST", "127.0.0.1:1");
    run(command).await.says(
        5,
        &["127.0.0.1:1", "'dispatch up' runs", "ARVADOS_API_HOST"],
    );
    let mut command = fixture.command(&["wait", "1"]);
    command.env("ARVADOS_API_HOST", "127.0.0.1:1");
    let done = run(command).await;
    assert_eq!(done.code, 125, "not to be mistaken for the job's: {done:?}");
    let mut command = fixture.command(&["list"]);
    command.env("ARVADOS_API_HOST", "https://x/y");
    run(command).await.says(4, &["not an API host"]);
    let mut command = fixture.command(&["list"]);
    command.env("ARVADOS_API_HOST", "http://x");
    run(command).await.says(4, &["only https"]);
    let mut command = fixture.command(&["list"]);
    command.env_remove("ARVADOS_API_TOKEN");
    run(command).await.says(4, &["ARVADOS_API_TOKEN"]);
}

#[test]
fn no_server_at_all() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| CommandResult::of(&mut bare(home.path(), args));
    run(&["list"]).says(
        4,
        &[
            "no server is configured",
            "dispatch up",
            "--state-dir",
            "ARVADOS_API_HOST",
        ],
    );
    std::fs::create_dir_all(home.path().join(".local/state/dispatch")).unwrap();
    run(&["list"]).says(4, &["dispatch is not running"]);
    run(&["list", "--state-dir", "x"]).says(4, &["no 'dispatch up' is running on", "x"]);
    run(&["env"]).says(
        4,
        &["no 'dispatch up' is running on", ".local/state/dispatch"],
    );
}

#[test]
fn help_version_man_page_and_completions_need_no_server() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| CommandResult::of(&mut bare(home.path(), args)).ok();
    assert!(run(&["--version"]).starts_with("dispatch "));
    assert!(run(&["--help"]).contains("Exit status:"));
    assert!(run(&["man"]).contains("Exit status"));
    assert!(run(&["--admin", "man"]).contains("Exit status"));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run(&["completions", shell]).contains("dispatch"), "{shell}");
    }
    run(&["man", "--dir", "pages"]);
    assert!(home.path().join("pages/dispatch-submit.1").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_no_job_or_one_that_is_not_there_is_told_so() {
    let fixture = Fixture::with_image().await;
    fixture.submit("a").await;
    for command in ["kill", "hold", "release", "retry", "rm", "wait"] {
        fixture
            .run(&[command])
            .await
            .says(2, &["which jobs?", "--name NAME, --failed or --all"]);
    }
    let some = fixture.run(&["kill", "1", "99999"]).await;
    some.says(3, &["no job 99999, and nothing was done to the others"]);
    let job = fixture.run(&["--json", "show", "1"]).await.json();
    assert_eq!(job["state"], "Queued");
    let none = fixture.run(&["kill", "--failed"]).await;
    assert!(none.err.contains("no such jobs"), "{none:?}");
    let all = fixture.run(&["kill", "--all", "--since", "1h"]).await;
    assert!(all.err.contains("job 1 is cancelled"), "{all:?}");
}

/// Nothing listens on port 9. The four names are those that other programs read.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_is_not_asked_for_this_machine_and_named_elsewhere() {
    let fixture = Fixture::with_image().await;
    for name in ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        let mut list = fixture.command(&["list"]);
        list.env(name, "http://ann:sesame@127.0.0.1:9");
        run(list).await.ok();
    }
    let mut elsewhere = fixture.command(&["list"]);
    elsewhere
        .env("ARVADOS_API_HOST", "api.invalid")
        .env("HTTPS_PROXY", "http://ann:sesame@127.0.0.1:9");
    let result = run(elsewhere).await;
    assert!(!result.err.contains("sesame"), "{}", result.err);
    result.says(
        5,
        &["api.invalid through the proxy http://127.0.0.1:9 (of https_proxy"],
    );
}

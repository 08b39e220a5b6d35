//! Tests of running commands of schedulers.

use super::*;

fn sh(script: &str) -> Command {
    Command::new("sh").args(["-c", script])
}

#[tokio::test]
async fn a_command_answers_with_all_it_wrote() {
    let answer = sh("cat; echo no >&2; exit 3")
        .input("hello")
        .run()
        .await
        .unwrap();
    assert_eq!(
        (
            answer.stdout.as_str(),
            answer.failure().as_str(),
            answer.status.code()
        ),
        ("hello", "no", Some(3))
    );
}

/// A site's wrapper may start something that keeps the pipes open, or that prints the rest.
#[tokio::test]
async fn what_a_command_leaves_behind_is_not_waited_for_and_makes_no_listing() {
    let command = || {
        let script = "(sleep 20; echo 34) & echo 12; printf 3; echo no >&2";
        sh(script).timeout(Duration::from_secs(15))
    };
    let answer = command().run_until_exit().await.unwrap();
    assert_eq!(
        (answer.stdout.as_str(), answer.stderr.as_str()),
        ("12\n", "no")
    );
    let error = command().run().await.unwrap_err();
    assert!(matches!(error, CommandError::OutputOpen { .. }), "{error}");
    let failed = sh("sleep 20 & echo no >&2; exit 3").run_until_exit().await;
    assert_eq!(failed.unwrap_err().to_string(), "no");
}

#[tokio::test]
async fn a_command_that_hangs_is_ended() {
    let error = sh("sleep 100")
        .timeout(Duration::from_millis(100))
        .run()
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "sh did not end within 0 s");
}

#[tokio::test]
async fn cut_or_broken_output_is_no_answer() {
    let flood = sh("head -c 70000000 /dev/zero").run().await.unwrap_err();
    assert_eq!(flood.to_string(), "sh wrote more than 64 MiB");
    let binary = sh(r"printf 'a\377b'").run().await.unwrap();
    assert_eq!(binary.stdout, "a\u{fffd}b");
    let missing = Command::new("/no/such").run().await.unwrap_err();
    assert!(
        matches!(missing, CommandError::NotStarted { .. }),
        "{missing}"
    );
}

#[tokio::test]
async fn a_script_that_names_no_shell_has_one() {
    let dir = tempfile::tempdir().unwrap();
    // Another process writes the file. Otherwise a fork of a parallel test might inherit it
    // open for writing.
    let file = dir.path().join("nameless").display().to_string();
    let script = sh(&format!("cat >{file}; chmod 755 {file}")).input("echo it ran");
    script.run_checked().await.unwrap();
    let nameless = Command::new("nameless").without("PATH");
    let nameless = nameless.envs([("PATH".into(), dir.path().into())]);
    assert_eq!(nameless.run().await.unwrap().stdout, "it ran\n");
}

#[tokio::test]
async fn a_command_goes_without_what_is_not_for_it() {
    let own = sh("echo ${OWN-gone}").envs([("OWN".into(), "there".into())]);
    assert_eq!(own.clone().run().await.unwrap().stdout, "there\n");
    assert_eq!(own.without("OWN").run().await.unwrap().stdout, "gone\n");
}

#[tokio::test]
async fn a_command_does_not_see_our_token() {
    let answer = sh("env | grep -c ARVADOS_API_TOKEN").run().await.unwrap();
    assert_eq!(answer.stdout.trim(), "0");
}

//! No token can be read in HTCondor, its files or its processes by a user who does not own the
//! jobs.

use serde_json::json;

use crate::secrets::{Secrets, add_credentials, files, found_in, processes, secret};
use suite_tests::stack::{client, wait_for};

use super::STEP_TIMEOUT;
use super::site::{Site, jobs, notes as notes_in};

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_htcondor_or_in_a_process() {
    let site = Site::shared(&[]).await;
    let (container, notes) = site.started("secretive", json!({})).await;
    let dir = site.stack.dir.path();
    let mut secrets = Secrets::new();
    for who in ["dispatch", "root", "user"] {
        let token = std::fs::read_to_string(site.stack.ready["tokens"][who].as_str().unwrap());
        secrets.insert(format!("{who} token"), secret(&token.unwrap()));
    }
    let attempt = site
        .stack
        .container(&container)
        .await
        .locked_by_uuid
        .unwrap();
    let file = jobs(dir)
        .join(container.as_str())
        .join(format!("token-{attempt}"));
    let token = add_credentials(&mut secrets, &file);
    assert!(secrets.contains_key("gateway secret"));
    let as_attempt =
        client(&site.stack.ready, "user").with_token(arvados_client::Token::new(token));
    assert_eq!(
        as_attempt.container(&container).await.unwrap().uuid,
        container
    );
    // The search finds it where it is: the job has read it.
    assert_eq!(
        found_in(&secrets, notes.as_bytes()).as_deref(),
        Some("attempt token")
    );
    std::fs::remove_file(notes_in(dir).join(container.as_str())).unwrap();

    // Searches as an unrelated user.
    let pool = std::path::Path::new(site.lab.variable("CONDOR_LAB_DIR")).to_owned();
    let other = "daemon";
    let ask = |program: &str, args: &[&str]| {
        let output = site.run_as(other, program, args, "");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            found_in(&secrets, &output.stdout),
            None,
            "{program} {args:?}"
        );
        assert_eq!(
            found_in(&secrets, &output.stderr),
            None,
            "{program} {args:?}"
        );
        shown
    };
    let shown = ask("condor_q", &["-all", "-long"]);
    assert!(
        shown.contains(container.as_str()) && shown.contains("SITE_MARK"),
        "{shown}"
    );
    ask("condor_status", &["-long"]);
    ask("condor_status", &["-schedd", "-long"]);
    // The job runs as nobody, with the token in its directory; other users cannot enter it.
    let execute = pool.join("execute");
    let job_files = files(&execute);
    let holds =
        |path: &std::path::PathBuf| found_in(&secrets, &std::fs::read(path).unwrap_or_default());
    assert_eq!(
        job_files.iter().filter_map(holds).collect::<Vec<_>>(),
        ["attempt token"],
        "{job_files:?}"
    );
    let sources = [
        execute.to_str().unwrap(),
        pool.to_str().unwrap(),
        dir.to_str().unwrap(),
    ];
    for source in sources {
        for secret in secrets.values() {
            let found = ask(
                "grep",
                &[
                    "--recursive",
                    "--files-with-matches",
                    "--text",
                    secret,
                    source,
                ],
            );
            assert_eq!(found, "", "of {source}");
        }
    }
    let mark = ask(
        "grep",
        &[
            "--recursive",
            "--files-with-matches",
            "--text",
            "MARK=",
            pool.to_str().unwrap(),
        ],
    );
    assert!(
        !mark.is_empty(),
        "the search as {other} finds nothing at all"
    );

    let mut seen = 0;
    for (pid, _, command, environment) in processes() {
        assert_eq!(found_in(&secrets, &command), None, "argv of {pid}");
        assert_eq!(
            found_in(&secrets, &environment),
            None,
            "environment of {pid}"
        );
        seen += usize::from(String::from_utf8_lossy(&environment).contains("SITE_MARK=here"));
    }
    assert!(seen > 0, "the job's process was not looked at");
    for shown in [
        &["--dry-run", container.as_str()][..],
        &["--json", "--dry-run", container.as_str()],
        &["explain", container.as_str()],
        &["check"],
    ] {
        let output = site.subcommand(shown);
        for text in [&output.stdout, &output.stderr] {
            assert_eq!(found_in(&secrets, text), None, "{shown:?}");
        }
    }

    // Ended, it is in HTCondor's history and event logs.
    let (job, _) = site.job(&container);
    site.lab.run("condor_rm", &[&job]);
    let history = wait_for("its history", STEP_TIMEOUT, || {
        let constraint = format!("ContainerUUID == \"{container}\"");
        let shown = ask("condor_history", &["-long", "-constraint", &constraint]);
        shown.contains(container.as_str()).then_some(shown)
    });
    assert!(history.contains("SITE_MARK"), "{history}");
    // HTCondor may write the history before it deletes the job's directory, which has the token.
    wait_for("the end of its directory", STEP_TIMEOUT, || {
        let is_there = |file: &std::path::PathBuf| file.exists();
        (!job_files.iter().any(is_there)).then_some(())
    });
    for file in files(&pool) {
        let content = std::fs::read(&file).unwrap_or_default();
        // A next attempt may have begun, with a token of its own.
        assert_eq!(found_in(&secrets, &content), None, "{}", file.display());
    }
    let log = site.stack.dispatcher.log_text();
    assert!(log.contains(container.as_str()));
    assert_eq!(found_in(&secrets, log.as_bytes()), None);
}

//! dispatch-condor with a configuration file, on a real pool whose nodes share no files with the
//! submit machine: its check, its dry run and its explanations.

use serde_json::{Value, json};

use suite_tests::lab::Lab;
use suite_tests::stack::wait_for;

mod as_job;
mod secrets;
mod site;

use site::{Site, jobs, value};
use suite_tests::STEP_TIMEOUT;

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_what_htcondor_then_has() {
    let site = Site::shared(&[]).await;
    let more = json!({
        "scheduling_parameters": {"max_run_time": 3601, "partitions": ["main", "old"]},
    });
    let (container, notes) = site.started("shown", more).await;
    let shown = site.answer(&["--dry-run", container.as_str()]);
    let not_now = shown["not_now"].as_str().unwrap();
    assert!(not_now.starts_with("it is "), "{shown}");
    assert_eq!(shown["macros"]["JobCpus"], "1", "{shown}");
    let (_, ad) = site.job(&container);
    let attempt = site.stack.container(&container).await.locked_by_uuid;
    let attempt = attempt.unwrap().to_string();

    // condor_submit creates the job's ad from the description.
    let user = site.lab.variable("CONDOR_LAB_USER").to_owned();
    let read = |description: &str| {
        let description = description.replace("ATTEMPT", &attempt);
        let args = ["-dry-run:full", "-", "-"];
        let output = site.run_as(&user, "condor_submit", &args, &description);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}\n{description}");
        let text = String::from_utf8(output.stdout).unwrap();
        let job = text.split("\n\n").find(|job| job.contains("Cmd = "));
        job.unwrap().to_owned()
    };
    let expected = read(shown["description"].as_str().unwrap());
    // Attributes of this submission alone, or changed since by the queue and the job's start.
    const OWN: [&str; 16] = [
        "ClusterId",
        "ProcId",
        "QDate",
        "EnteredCurrentStatus",
        "JobSubmitFile",
        "JobSubmitMethod",
        "Owner",
        "JobStatus",
        "CurrentHosts",
        "NumJobStarts",
        "DiskUsage",
        "ImageSize",
        "Iwd",
        "TransferInputSizeMB",
        "JobPrio",
        "User",
    ];
    let mut compared = 0;
    for line in expected.lines() {
        let Some((name, told)) = line.split_once(" = ") else {
            continue;
        };
        if OWN.contains(&name) || name.starts_with("Cumulative") || name.starts_with("Committed") {
            continue;
        }
        assert_eq!(value(&ad, name), Some(told), "{name} in {ad}");
        compared += 1;
    }
    assert!(compared > 40, "{expected}");
    for (name, told) in [
        ("SiteSize", "\"1/582/0/small\""),
        ("SiteQueue", "\"main,old\""),
        ("SiteMinutes", "61"),
        ("AcctGroup", "\"lab.user\""),
        ("SiteUser", "\"user\""),
        ("SiteGroup", "\"mapped\""),
        ("ContainerUser", "\"user\""),
        ("ConcurrencyLimits", "\"licence:2\""),
        ("Rank", "Memory"),
        ("RequestMemory", "582"),
        ("AllowedExecuteDuration", "7201"),
        ("TransferExecutable", "true"),
    ] {
        let got = value(&ad, name).unwrap_or("true");
        assert_eq!(got, told, "{name} in {ad}");
    }

    // The page for people is a description too.
    let page = site.subcommand(&["--dry-run", container.as_str()]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert_eq!(
        read(&page)
            .lines()
            .filter(|l| !l.contains("QDate") && !l.contains("EnteredCurrent"))
            .collect::<Vec<_>>(),
        expected
            .lines()
            .filter(|l| !l.contains("QDate") && !l.contains("EnteredCurrent"))
            .collect::<Vec<_>>()
    );
    let from = |text: &str| {
        let mut lines = shown["lines"].as_array().unwrap().iter();
        let found = lines.find(|line| line["value"].as_str().unwrap().starts_with(text));
        found.unwrap()["from"].as_str().unwrap().to_owned()
    };
    assert_eq!(from("rank ="), "Containers.Condor.Rank: Memory");
    assert_eq!(
        from("+SiteMinutes"),
        "Containers.Condor.SubmitLines: +SiteMinutes = %W"
    );
    assert!(from("job_max_vacate_time").starts_with("default of --stop-grace"));
    assert!(from("executable").contains("CrunchRunCommand"));

    // The node has the file's bytes unchanged.
    for line in [
        "user nobody",
        "SITE_MARK=here it's \"quoted\" $(HOME)",
        "SSL_CERT_FILE=certificate.pem",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        &format!(
            "argument --mark=it's \"one\" $(HOME) word --leave-to-dispatcher --token-file token-{attempt} {container}"
        ),
        &format!("file 600 token-{attempt}"),
        "file 600 certificate.pem",
    ] {
        assert!(
            notes.lines().any(|l| l == line),
            "{line:?} is not in {notes}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_why_a_job_runs_waits_or_is_held() {
    let site = Site::up().await;
    let large = json!({"runtime_constraints": {"vcpus": 9, "ram": 32 << 20}});
    let (_, large) = site.stack.submit("large", "true", large).await;
    let why = |uuid: &arvados_client::ContainerUuid| {
        let answer = site.answer(&["explain", uuid.as_str()]);
        (answer["why"].as_str().unwrap().to_owned(), answer)
    };
    assert!(
        why(&large).0.contains("none of the 1 instance types"),
        "{:?}",
        why(&large)
    );

    let all = json!({"runtime_constraints": {"vcpus": 4, "ram": 32 << 20}});
    let (holder, _) = site.started("holder", all.clone()).await;
    let started = wait_for("the start to be reported", STEP_TIMEOUT, || {
        let (why, _) = why(&holder);
        why.contains("has started on").then_some(why)
    });
    assert!(started.contains("127-0-0-1"), "{started}");

    let (_, behind) = site.stack.submit("behind", "true", all).await;
    let (job, _) = site.job(&behind);
    let answer = wait_for("the analysis", STEP_TIMEOUT, || {
        let (why, answer) = why(&behind);
        let analysis = answer["analysis"].as_str()?.to_owned();
        assert!(why.starts_with(&format!("job {job} waits ")), "{answer}");
        analysis.contains("match").then_some(analysis)
    });
    assert!(answer.contains("Run analysis summary"), "{answer}");

    site.lab.run(
        "condor_hold",
        &["-reason", "the licence server is down", &job],
    );
    let held = wait_for("the hold", STEP_TIMEOUT, || {
        let (_, answer) = why(&behind);
        let text = answer.to_string();
        text.contains("the licence server is down").then_some(text)
    });
    assert!(held.contains("Hold reason"), "{held}");
    let page = String::from_utf8(site.subcommand(&["explain", behind.as_str()]).stdout).unwrap();
    assert!(
        page.contains("\n        Hold reason: the licence server is down"),
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_finds_what_works_and_what_does_not() {
    let site = Site::shared(&[]).await;
    let findings = |report: &Value, what: &str| -> Vec<String> {
        let all = report["findings"].as_array().unwrap().iter();
        // A finding about a node begins with its name.
        let about = all.filter(|finding| {
            let name = finding["what"].as_str().unwrap();
            name == what || (what.starts_with(", ") && name.ends_with(what))
        });
        about
            .map(|f| format!("{}: {}", f["level"], f["finding"]))
            .collect()
    };
    let failed = |more: &[&str]| -> Value {
        let more: Vec<&str> = ["--json"].iter().chain(more).copied().collect();
        let output = site.subcommand(&more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    // The real one, from a directory that the job's user cannot enter.
    let crunch_run = site.own("crunch-run");
    let crunch_run = crunch_run.to_str().unwrap();
    let report = site.answer(&["--crunch-run", crunch_run, "check", "--submit-test"]);
    assert_eq!(report["ok"], true, "{report}");
    let test = findings(&report, "submit test");
    assert!(test[0].contains("checked its node as uid "), "{test:?}");
    // The probe uses the transferred certificate.
    let server = findings(&report, ", API server");
    assert!(server[0].starts_with("\"ok\""), "{report}");
    assert!(
        findings(&report, "slots")[0].contains("with 8 CPUs, 16384 MiB, 0 GPUs"),
        "{report}"
    );
    assert!(
        findings(&report, "submit lines")[0].contains("condor_submit accepts them"),
        "{report}"
    );
    assert_eq!(findings(&report, "files sent").len(), 2, "{report}");
    assert!(
        findings(&report, "dispatch token")
            .iter()
            .any(|f| f.contains("may mint and revoke attempt tokens")),
        "{report}"
    );
    // An ended job leaves the queue by itself a moment later.
    let own = site.stack.dir.path().to_str().unwrap();
    wait_for("it to leave the queue", STEP_TIMEOUT, || {
        let outputs = site.lab.run("condor_q", &["-all", "-af", "Out"]);
        (!outputs.contains(own)).then_some(())
    });
    let left = std::fs::read_dir(jobs(site.stack.dir.path())).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().contains("check")),
        "{left:?}"
    );

    let report = failed(&[
        "--crunch-run",
        "/no/such/crunch-run",
        "check",
        "--submit-test",
    ]);
    assert!(
        findings(&report, "files sent")[0].contains("/no/such/crunch-run"),
        "{report}"
    );
    assert!(
        findings(&report, "submit test")[0].starts_with("\"fail\""),
        "{report}"
    );

    let blind = format!("{crunch_run} --ca-certs=/no/such.pem");
    let report = failed(&["--crunch-run", &blind, "check", "--submit-test"]);
    let test = findings(&report, "submit test");
    assert!(test[0].starts_with("\"ok\""), "{test:?}");
    let server = findings(&report, ", API server");
    assert!(server[0].contains("/no/such.pem"), "{report}");

    let unmet = "requirements = TARGET.HasUnobtainium =?= True";
    let report = failed(&[
        "--crunch-run",
        crunch_run,
        "--submit-line",
        unmet,
        "check",
        "--submit-test",
        "--timeout",
        "5s",
    ]);
    let found = findings(&report, "submit test");
    assert!(
        found[0].contains("could never have started") && found[0].contains("HasUnobtainium"),
        "{found:?}"
    );

    let report = site.answer(&["--submit-line", "Rnak = Memory", "check"]);
    let found = findings(&report, "submit lines");
    assert!(found[0].contains("'Rnak = Memory' was unused"), "{found:?}");
    let report = failed(&["--submit-line", "+SiteNote = a b c", "check"]);
    assert!(
        findings(&report, "submit lines")[0].starts_with("\"fail\""),
        "{report}"
    );

    let token = site.own("wrong-token");
    std::fs::write(&token, "wrongwrongwrong").unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let report = failed(&["--token-file", token.to_str().unwrap(), "check"]);
    assert!(
        findings(&report, "dispatch token")[0].contains("it is wrong"),
        "{report}"
    );

    let output = site.subcommand(&["--submit-line", "+OnExitRemove = true", "check"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("OnExitRemove is not for the site to set"),
        "{stderr}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_shared_file_system_the_executor_needs_to_travel() {
    let site = Site::shared(&[]).await;
    let crunch_run = site.own("crunch-run");
    let crunch_run = crunch_run.to_str().unwrap();
    // The directory is not accessible for the job's user: without the transfer, the job cannot
    // start.
    let config = std::fs::read_to_string(site.own("config.yml")).unwrap();
    let config = config.replace("\"TransferCrunchRun\":true", "\"TransferCrunchRun\":false");
    std::fs::write(site.own("config.yml"), config).unwrap();
    let more = [
        "--json",
        "--crunch-run",
        crunch_run,
        "check",
        "--submit-test",
    ];
    let output = site.subcommand(&more);
    assert_eq!(output.status.code(), Some(78));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        stdout.contains("\"level\":\"fail\",\"what\":\"submit test\""),
        "{stdout}"
    );
    assert!(stdout.contains("was held"), "{stdout}");
}

/// Runs the real crunch-run as a user who has only the job's directory and the image cache.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_runs_where_crunch_run_and_the_certificate_had_to_travel() {
    let command = "DIR/own/crunch-run --cache-dir=DIR/notes/cache";
    let site = Site::shared(&["--crunch-run", command]).await;
    let script = "echo made by a traveller > /out/note";
    let (request, container) = site.stack.submit("travels", script, json!({})).await;
    let stack = &site.stack;
    let record = stack.end(&container, STEP_TIMEOUT).await;
    // The request's: that of the container is replaced by each later one, and then by this.
    let request = stack.user.container_request(&request).await.unwrap();
    let log = request.log_uuid.unwrap().to_string();
    let text = stack.read(&log, "crunch-run.txt").await;
    assert!(text.contains("uid 65534"), "{text}");
    assert_eq!(record.exit_code, Some(0), "{record:?}\n{text}");
    let output = record.output.unwrap().to_string();
    assert_eq!(stack.read(&output, "note").await, "made by a traveller\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_asks_for_gpus() {
    let site = Site::with_gpus().await;
    let crunch_run = site.own("crunch-run");
    let flags = ["--crunch-run", crunch_run.to_str().unwrap()];
    let check = ["check", "--submit-test", "--gpus", "2"];
    let report = site.answer(&[&flags[..], &check[..2]].concat());
    assert!(granted_gpus(&report).is_none(), "{report}");
    let report = site.answer(&[&flags[..], &check].concat());
    let granted = granted_gpus(&report).unwrap();
    assert_eq!(granted["level"], "ok", "{report}");
    let ids = granted["finding"].as_str().unwrap().split(',');
    assert_eq!(ids.count(), 2, "{granted}");
}

fn granted_gpus(report: &Value) -> Option<&Value> {
    let findings = report["findings"].as_array().unwrap();
    let is_it = |finding: &&Value| finding["what"].as_str().unwrap().ends_with("granted GPUs");
    findings.iter().find(is_it)
}

/// `make lab-condor` prints a PATH whose commands are those of the pool; on it, an ordinary user is
/// himself.
#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_user_can_use_the_commands_of_the_lab() {
    let pool = Lab::shared("condor");
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=daemon", "--regid=daemon", "--clear-groups"])
        .args(["condor_q", "-totals"])
        .env("PATH", pool.path())
        .env("CONDOR_CONFIG", pool.variable("CONDOR_CONFIG"))
        .current_dir("/")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Total for query"), "{text} {stderr}");
}

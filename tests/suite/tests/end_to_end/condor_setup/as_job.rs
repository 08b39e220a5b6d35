//! dispatch-condor as a job of the pool itself.

use arvados_client::records::ContainerState;
use serde_json::json;

use suite_tests::stack::wait_for;

use super::STEP_TIMEOUT;
use super::site::Site;

/// The description of `contrib/condor/dispatch-condor.sub`, with this machine's paths.
#[tokio::test(flavor = "multi_thread")]
async fn the_dispatcher_can_be_a_job_itself_and_leaves_its_jobs_alone() {
    let mut site = Site::shared(&[]).await;
    site.stack.dispatcher.terminate(STEP_TIMEOUT);
    let root = suite_tests::workspace();
    let sample = std::fs::read_to_string(root.join("contrib/condor/dispatch-condor.sub")).unwrap();
    let own = site.own("");
    let own = own.to_str().unwrap().trim_end_matches('/');
    let path = site.lab.path();
    let path = path.split_once(':').unwrap().1;
    let mut description = String::new();
    for line in sample.lines() {
        let line = match line.split_once('=').map(|(key, _)| key.trim()) {
            Some("home") => format!("home = {own}"),
            Some("program") => format!("program = {own}/dispatch-condor"),
            Some("environment") => format!(
                "environment = \"PATH='{path}' CONDOR_CONFIG='{}' SSL_CERT_FILE='{own}/certificate.pem'\"",
                site.lab.variable("CONDOR_CONFIG")
            ),
            _ => line.to_owned(),
        };
        description += &line;
        description.push('\n');
    }
    let user = site.lab.variable("CONDOR_LAB_USER").to_owned();
    let submit = || {
        let output = site.run_as(&user, "condor_submit", &["-terse", "-"], &description);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let answer = String::from_utf8(output.stdout).unwrap();
        answer.split(' ').next().unwrap().to_owned()
    };
    let service = submit();
    let (request, container) = site.stack.submit("of a job", "true", json!({})).await;
    site.notes(&container).await;
    let (job, _) = site.job(&container);
    site.lab.run("condor_rm", &[&service]);
    wait_for("the dispatcher to leave", STEP_TIMEOUT, || {
        let args = [
            "-all",
            "-constraint",
            "DispatchCondor =?= true",
            "-af",
            "ClusterId",
        ];
        site.lab
            .run("condor_q", &args)
            .trim()
            .is_empty()
            .then_some(())
    });
    let log = std::fs::read_to_string(site.own("dispatch-condor.log")).unwrap();
    assert!(log.contains("stopped; jobs were left running"), "{log}");
    assert_eq!(site.job(&container).0, job);
    let state = site.stack.container(&container).await.state;
    assert_eq!(state, ContainerState::Locked);
    // The dispatcher, submitted again, adopts the job, and cancels it at priority 0.
    let again = submit();
    let hold = json!({"priority": 0});
    let requests = &site.stack.user;
    requests
        .update_container_request(&request, hold)
        .await
        .unwrap();
    let of_container = format!("ContainerUUID == \"{container}\"");
    wait_for("the job to be taken up, and ended", STEP_TIMEOUT, || {
        let args = ["-all", "-constraint", &of_container, "-af", "ClusterId"];
        site.lab
            .run("condor_q", &args)
            .trim()
            .is_empty()
            .then_some(())
    });
    site.lab.run("condor_rm", &[&again]);
}

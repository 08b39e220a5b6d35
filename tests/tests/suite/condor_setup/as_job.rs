//! dispatch-condor as a job of the pool itself.

use arvados_client::records::ContainerState;
use serde_json::json;

use crate::stack::wait_for;

use super::PATIENCE;
use super::site::Site;

/// As `contrib/condor/dispatch-condor.sub` has it, with this machine's paths.
#[tokio::test(flavor = "multi_thread")]
async fn the_dispatcher_can_be_a_job_itself_and_leaves_its_jobs_alone() {
    let mut site = Site::up(&[]).await;
    site.stack.dispatcher.terminate(PATIENCE);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
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
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let answer = String::from_utf8(output.stdout).unwrap();
        answer.split(' ').next().unwrap().to_owned()
    };
    let service = submit();
    let (request, container) = site.stack.submit("of a job", "true", json!({})).await;
    site.notes(&container).await;
    let (job, _) = site.job(&container);
    site.lab.ask("condor_rm", &[&service]);
    wait_for("the dispatcher to leave", PATIENCE, || {
        let args = [
            "-all",
            "-constraint",
            "DispatchCondor =?= true",
            "-af",
            "ClusterId",
        ];
        site.lab
            .ask("condor_q", &args)
            .trim()
            .is_empty()
            .then_some(())
    });
    let log = std::fs::read_to_string(site.own("dispatch-condor.log")).unwrap();
    assert!(log.contains("stopped; jobs were left running"), "{log}");
    assert_eq!(site.job(&container).0, job);
    let state = site.stack.container(&container).await.state;
    assert_eq!(state, ContainerState::Locked);
    // Submitted again, it takes the job up, and ends it when nobody wants it any more.
    let again = submit();
    let hold = json!({"priority": 0});
    let requests = &site.stack.user;
    requests
        .update_container_request(&request, hold)
        .await
        .unwrap();
    wait_for("the job to be taken up, and ended", PATIENCE, || {
        let args = [
            "-all",
            "-constraint",
            "ContainerUUID =!= undefined",
            "-af",
            "ClusterId",
        ];
        site.lab
            .ask("condor_q", &args)
            .trim()
            .is_empty()
            .then_some(())
    });
    site.lab.ask("condor_rm", &[&again]);
}

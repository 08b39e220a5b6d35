//! The live log of a running job, over the log route of a server whose containers have gateways.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Response, StatusCode};
use serde_json::json;
use suite_tests::proxy::{Effect, Fault, Rule};

use crate::fixture::{Fixture, Submitted, run};

const FIRST_LINE: &str = "2026-11-21T07:00:00.000000001Z hello\n";
const SECOND_LINE: &str = "2026-11-21T07:00:01.000000001Z world\n";
const THIRD_LINE: &str = "2026-11-21T07:00:02.000000001Z again\n";

/// Files of the gateway of a container, and the requests it received.
#[derive(Clone, Default)]
struct Gateway(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: BTreeMap<String, String>,
    is_away: bool,
    /// The last requested offset of each file.
    asked: BTreeMap<String, usize>,
}

impl Gateway {
    fn has(&self, name: &str, content: &str) {
        let mut state = self.0.lock().unwrap();
        state.files.insert(name.to_owned(), content.to_owned());
    }

    fn set_away(&self, is_away: bool) {
        self.0.lock().unwrap().is_away = is_away;
    }

    /// Waits until a client has read a file up to here and requests more.
    async fn is_read(&self, name: &str, offset: usize) {
        let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
        while self.0.lock().unwrap().asked.get(name) != Some(&offset) {
            assert!(Instant::now() < deadline, "{name} is not read to {offset}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn answer(&self, asked: &http::request::Parts) -> Response<Vec<u8>> {
        let mut state = self.0.lock().unwrap();
        let name = asked.uri.path().rsplit('/').next().unwrap().to_owned();
        let reply = |status, range: String, body: &str| {
            let reply = Response::builder()
                .status(status)
                .header("Content-Range", range);
            reply.body(body.as_bytes().to_vec()).unwrap()
        };
        if state.is_away {
            return reply(503, String::new(), "proxy error");
        }
        let Some(content) = state.files.get(&name).cloned() else {
            return reply(404, String::new(), "Not Found");
        };
        let range = asked.headers["Range"].to_str().unwrap();
        let begin = range
            .strip_prefix("bytes=")
            .and_then(|r| r.strip_suffix('-'));
        let begin: usize = begin.unwrap().parse().unwrap();
        state.asked.insert(name, begin);
        let size = content.len();
        match begin < size {
            true => reply(
                206,
                format!("bytes {begin}-{}/{size}", size - 1),
                &content[begin..],
            ),
            false => reply(416, format!("bytes */{size}"), ""),
        }
    }

    fn list(&self, asked: &http::request::Parts) -> Response<Vec<u8>> {
        let state = self.0.lock().unwrap();
        let root = asked.uri.path();
        let names = [""]
            .into_iter()
            .chain(state.files.keys().map(String::as_str));
        let each =
            names.map(|name| format!("<D:response><D:href>{root}{name}</D:href></D:response>"));
        let each: String = each.collect();
        let listing = format!("<D:multistatus xmlns:D=\"DAV:\">{each}</D:multistatus>");
        let reply = Response::builder().status(207);
        reply.body(listing.into_bytes()).unwrap()
    }

    fn rules(&self) -> Vec<Rule> {
        let (files, list) = (self.clone(), self.clone());
        let get = Fault::instead(move |asked| files.answer(asked));
        let propfind = Fault::instead(move |asked| list.list(asked));
        let propfind_method = Method::from_bytes(b"PROPFIND").unwrap();
        vec![
            Rule::every(Method::GET, "container_requests/*/log/*/*", get),
            Rule::every(propfind_method, "container_requests/*/log/*/*", propfind),
        ]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_s_log_is_followed_and_each_byte_comes_once() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    let gateway = Gateway::default();
    let (proxy, command) = fixture.proxy();
    proxy.faults(gateway.rules());
    let half = [FIRST_LINE, &SECOND_LINE[..34]].concat();
    gateway.has("stdout.txt", &half);
    let following = tokio::spawn(run(command(&["logs", "-f", &job.id])));
    gateway.is_read("stdout.txt", half.len()).await;
    // The gateway stops, and more is saved.
    gateway.set_away(true);
    let saved = [FIRST_LINE, SECOND_LINE].concat();
    let log = fixture.store(&[("stdout.txt", &saved)]).await;
    fixture.update(&job, json!({"log": log})).await;
    while proxy.count(
        Method::GET,
        &format!("collections/{}", log.replace('+', "%2B")),
    ) == 0
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The gateway starts again, with more than is saved.
    let whole = [FIRST_LINE, SECOND_LINE, THIRD_LINE].concat();
    gateway.has("stdout.txt", &whole);
    gateway.has("stderr.txt", "it broke\nlast words");
    gateway.set_away(false);
    gateway.is_read("stdout.txt", whole.len()).await;
    gateway.is_read("stderr.txt", 19).await;
    let log = [
        ("stdout.txt", whole.as_str()),
        ("stderr.txt", "it broke\nlast words, and more"),
    ];
    fixture.finish(&job, 0, &[], &log).await;
    let done = following.await.unwrap();
    assert_eq!(
        (done.code, done.out.as_str()),
        (0, "hello\nworld\nagain\n"),
        "{done:?}"
    );
    let stderr: Vec<&str> = done
        .err
        .lines()
        .filter(|l| !l.starts_with("dispatch: "))
        .collect();
    assert_eq!(stderr, ["it broke", "last words, and more"], "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_s_files_are_shown_and_listed_as_they_are_now() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    let gateway = Gateway::default();
    let (proxy, command) = fixture.proxy();
    proxy.faults(gateway.rules());
    gateway.has("stdout.txt", FIRST_LINE);
    gateway.has("crunch-run.txt", SECOND_LINE);
    let waiting = run(command(&["logs", &job.id])).await;
    waiting.says(3, &["has no log yet", "Queued"]);
    fixture.start(&job).await;
    assert_eq!(run(command(&["logs", &job.id])).await.ok(), "hello\n");
    let file = run(command(&["logs", &job.id, "--file", "crunch-run.txt"])).await;
    assert_eq!(file.ok(), "world\n");
    let files = run(command(&["logs", &job.id, "--files"])).await;
    assert_eq!(files.ok(), "crunch-run.txt\nstdout.txt\n");
    let missing = run(command(&["logs", &job.id, "--file", "none.txt"])).await;
    missing.says(3, &["no none.txt", "crunch-run.txt, stdout.txt"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_log_that_only_the_route_can_read_is_read_there() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    fixture
        .finish(&job, 0, &[], &[("stdout.txt", FIRST_LINE)])
        .await;
    let gateway = Gateway::default();
    gateway.has("stdout.txt", FIRST_LINE);
    let (proxy, command) = fixture.proxy();
    let gone = Fault::Answer(StatusCode::NOT_FOUND, Effect::None);
    let mut rules = gateway.rules();
    rules.push(Rule::every(Method::GET, "collections/*", gone));
    proxy.faults(rules);
    assert_eq!(run(command(&["logs", &job.id])).await.ok(), "hello\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_an_earlier_container_is_not_the_job_s() {
    let fixture = Fixture::with_image().await;
    let first = fixture.submit("a").await;
    fixture.start(&first).await;
    let log = fixture.store(&[("stdout.txt", FIRST_LINE)]).await;
    fixture.update(&first, json!({"log": log})).await;
    assert_eq!(fixture.run(&["logs", &first.id]).await.ok(), "hello\n");
    fixture.update(&first, json!({"state": "Cancelled"})).await;
    let shown = fixture.run(&["--json", "show", &first.id]).await.json();
    let request = &shown["request"];
    assert!(
        request["log_uuid"].is_string(),
        "the first container's log is in it"
    );
    let second = Submitted {
        id: first.id.clone(),
        uuid: first.uuid.clone(),
        container: request["container_uuid"].as_str().unwrap().parse().unwrap(),
    };
    assert_ne!(second.container, first.container);
    fixture.start(&second).await;
    let none = fixture.run(&["logs", &second.id]).await;
    none.says(3, &["has no log yet", "Running"]);
    let following = tokio::spawn(run(fixture.command(&["logs", "-f", &second.id])));
    fixture
        .finish(&second, 0, &[], &[("stdout.txt", SECOND_LINE)])
        .await;
    assert_eq!(following.await.unwrap().ok(), "world\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_on_hold_is_not_followed() {
    let fixture = Fixture::with_image().await;
    fixture.submit("a").await;
    fixture.run(&["hold", "1"]).await.ok();
    for follow in [&["logs", "1"][..], &["logs", "-f", "1"]] {
        let words = ["job 1 has no log yet", "dispatch release 1"];
        fixture.run(follow).await.says(3, &words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_printed_nothing_has_another_log() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    let log = [("crunch-run.txt", "no such command\n"), ("stdout.txt", "")];
    fixture.finish(&job, 127, &[], &log).await;
    let logs = fixture.run(&["logs", "1"]).await;
    assert_eq!((logs.code, logs.out.as_str()), (0, ""), "{logs:?}");
    assert!(
        logs.err.contains("dispatch logs 1 --file crunch-run.txt"),
        "{logs:?}"
    );
    let file = fixture
        .run(&["logs", "1", "--file", "crunch-run.txt"])
        .await;
    assert_eq!((file.ok().as_str()), "no such command\n");
}

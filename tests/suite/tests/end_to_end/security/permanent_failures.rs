//! Failures that no other attempt can change.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use arvados_client::records::{ContainerState, RequestState};
use serde_json::{Value, json};

use suite_tests::STEP_TIMEOUT;
use suite_tests::program::binary;
use suite_tests::stack::{Stack, environment};

/// An image of these tests with a link to itself.
fn image_with_link(stack: &Stack, name: &str) -> String {
    let root = stack.dir.path().join("rootfs");
    let link = root.join(name);
    // To itself: where another leads to would be made.
    symlink(name, &link).unwrap();
    let image = format!("busybox:{name}");
    let output = Command::new(binary("dispatch"))
        .args(["image", "add", &image])
        .arg(&root)
        .envs(environment(&stack.ready))
        .output()
        .unwrap();
    fs::remove_file(link).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    image
}

#[tokio::test]
async fn a_request_that_cannot_succeed_is_tried_once() {
    tried_once(Stack::up().await).await;
}

/// Such a server ignores the mark in the record, so the dispatcher ends the requests.
#[tokio::test]
async fn it_is_tried_once_also_on_a_server_that_would_run_it_again() {
    let stack = Stack::with_api(&["--emulate=arvados-3"], |servers, dir| {
        let run = dir.join("run");
        let args = ["--state-dir", run.to_str().unwrap()];
        servers.dispatcher("dispatch-local", &args, &[])
    });
    tried_once(stack.await).await;
}

/// Each request ends with its first container and its first lock, and says why.
async fn tried_once(stack: Stack) {
    let tmp = || json!({"kind": "tmp", "capacity": 1 << 20});
    let mut attacks: Vec<(&str, Value, &str)> = vec![
        (
            "true",
            json!({"mounts": {"/out": tmp(), "/proc": tmp()}}),
            "/proc",
        ),
        (
            "true",
            json!({"mounts": {"/out": tmp(), "/dev/null": {"kind": "text", "content": "x"}}}),
            "/dev/null",
        ),
        (
            "true",
            json!({"command": ["no-such-program"]}),
            "no-such-program",
        ),
        (
            "true",
            json!({"runtime_constraints": {"vcpus": 1, "ram": 1024}}),
            "memory",
        ),
        (
            "sleep 60",
            json!({"scheduling_parameters": {"max_run_time": 1}}),
            "maximum run time",
        ),
    ];
    for name in ["etc", "dev", "out"] {
        let image = image_with_link(&stack, name);
        let words = ["/etc", "/dev", "/out"].into_iter();
        let path = words.into_iter().find(|path| path.ends_with(name)).unwrap();
        attacks.push(("true", json!({"container_image": image}), path));
    }
    let mut submitted = Vec::new();
    for (script, mut more, words) in attacks {
        more["container_count_max"] = json!(3);
        let (request, container) = stack.submit(words, script, more).await;
        submitted.push((request, container, words));
    }
    for (request, container, words) in submitted {
        let record = stack.end(&container, STEP_TIMEOUT).await;
        assert_eq!(record.state, ContainerState::Cancelled, "{words}");
        let status = &record.runtime_status;
        let error = status.error.clone().unwrap_or_default();
        assert!(error.contains(words), "{words}: {error}");
        assert_eq!(status.extra["permanentFailure"], true, "{words}");
        assert_eq!(record.lock_count, 1, "{words}");
        let request = stack.user.container_request(&request).await.unwrap();
        let end = (request.state, request.container_uuid.as_ref());
        assert_eq!(end, (RequestState::Final, Some(&container)), "{words}");
    }
}

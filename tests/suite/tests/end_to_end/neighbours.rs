//! Several dispatchers on one server: they share the queue, and each container runs once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arvados_client::api::NewToken;
use arvados_client::filter::Query;
use arvados_client::records::{Authorization, Container, ContainerState};
use arvados_client::{Client, ContainerUuid};
use serde_json::{Value, json};

use crate::backend::{Backend, on_every_backend};
use crate::batch::Batch;
use suite_tests::STEP_TIMEOUT;
use suite_tests::program::Program;
use suite_tests::stack::{Stack, client, complete, wait_for};

/// An admin token of its own.
async fn admin_token(stack: &Stack) -> Authorization {
    let root = client(&stack.ready, "root");
    root.create_token(&NewToken {
        scopes: vec!["all".into()],
        expires_at: jiff::Timestamp::now() + Duration::from_secs(3600),
    })
    .await
    .unwrap()
}

/// Maximum number of containers added until each dispatcher has started one.
const MAX_EXTRA_CONTAINERS: usize = 60;

fn has_share(dispatcher: &Program) -> bool {
    dispatcher.log_text().contains(r#"event="dispatched""#)
}

/// Both dispatchers run containers, and each container runs once.
async fn share(stack: &Stack, second: &mut Program) {
    second.start();
    stack.wait_for_dispatcher();
    wait_for("the second dispatcher", STEP_TIMEOUT, || {
        second.log_contains(r#"event="started""#).then_some(())
    });
    let mut batch = Batch::submit(stack, 16, 0.5).await;
    // One of them may have taken all.
    for _ in 0..MAX_EXTRA_CONTAINERS {
        if has_share(&stack.dispatcher) && has_share(second) {
            break;
        }
        batch.add(stack, 0.5).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    batch.all_complete_once(stack).await;
    for program in [&stack.dispatcher, second] {
        assert!(has_share(program), "no share: {}", program.log_text());
    }
    for (_, container) in &batch.jobs {
        assert_eq!(stack.container(container).await.lock_count, 1);
    }
}

async fn two_dispatchers_with_the_same_token_share_the_queue(backend: Backend) {
    let (stack, mut second) = backend.stack_of_two(None).await;
    share(&stack, &mut second).await;
}
on_every_backend!(two_dispatchers_with_the_same_token_share_the_queue);

async fn two_dispatchers_with_tokens_of_their_own_share_the_queue(backend: Backend) {
    let file = "second-token";
    let (stack, mut second) = backend.stack_of_two(Some(file)).await;
    let token = admin_token(&stack).await.token().unwrap();
    let file = stack.dir.path().join(file);
    std::fs::write(&file, token.expose()).unwrap();
    backend.give(&file);
    share(&stack, &mut second).await;
}
on_every_backend!(two_dispatchers_with_tokens_of_their_own_share_the_queue);

/// Behaves like Arvados' own dispatchers: one admin token for all locks and runs; at every start,
/// containers that this token holds Locked go back to the queue.
struct Upstream {
    client: Client,
    own: Authorization,
    /// Given back once.
    returned: BTreeSet<ContainerUuid>,
    ran: BTreeSet<ContainerUuid>,
}

impl Upstream {
    async fn containers(&self, query: Query) -> Vec<Container> {
        let page = self.client.page::<Container>("containers", &query).await;
        page.unwrap().items
    }

    /// One poll: of every two containers that it locks it runs one, and unlocks the other first.
    async fn poll(&mut self) {
        let queued = Query::new()
            .filter("state", "=", "Queued")
            .filter("priority", ">", 0)
            .order("uuid desc")
            .limit(2);
        for container in self.containers(queued).await {
            let locked = self.client.lock_container(&container.uuid, "").await;
            // Ours may have been faster.
            let _ = locked;
        }
        let held = Query::new().filter("state", "=", "Locked").filter(
            "locked_by_uuid",
            "=",
            &self.own.uuid,
        );
        for container in self.containers(held).await {
            let uuid = container.uuid;
            if self.returned.len() <= self.ran.len() && self.returned.insert(uuid.clone()) {
                self.client.unlock_container(&uuid).await.unwrap();
                continue;
            }
            for change in [
                json!({"state": "Running"}),
                json!({"state": "Complete", "exit_code": 0, "output": EMPTY, "log": EMPTY}),
            ] {
                self.client.update_container(&uuid, change).await.unwrap();
            }
            self.ran.insert(uuid);
        }
    }
}

/// The empty collection.
const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e+0";

async fn an_upstream_like_dispatcher_neither_disturbs_nor_is_disturbed(backend: Backend) {
    // Without the limit it would lock all containers at once.
    let stack = backend.stack_with(&["--max-pending", "3"]).await;
    let own = admin_token(&stack).await;
    let as_upstream = client(&stack.ready, "root").with_token(own.token().unwrap());
    let empty = json!({"manifest_text": ""});
    let empty = as_upstream.create_collection(empty).await.unwrap();
    assert_eq!(empty.portable_data_hash.unwrap().to_string(), EMPTY);
    let mut upstream = Upstream {
        client: as_upstream,
        own,
        returned: BTreeSet::new(),
        ran: BTreeSet::new(),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (told, ran) = (stop.clone(), Arc::new(AtomicBool::new(false)));
    let has_run = ran.clone();
    let looking = tokio::spawn(async move {
        while !told.load(Ordering::Relaxed) {
            upstream.poll().await;
            has_run.store(!upstream.ran.is_empty(), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        upstream
    });
    let mut batch = Batch::submit(&stack, 16, 0.5).await;
    for _ in 0..MAX_EXTRA_CONTAINERS {
        if has_share(&stack.dispatcher) && ran.load(Ordering::Relaxed) {
            break;
        }
        batch.add(&stack, 0.5).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let mut records = Vec::new();
    for (name, container) in &batch.jobs {
        records.push((name, stack.end(container, STEP_TIMEOUT).await));
    }
    stop.store(true, Ordering::Relaxed);
    let upstream = looking.await.unwrap();
    assert!(!upstream.ran.is_empty(), "it had no share");
    assert!(upstream.ran.len() < batch.jobs.len(), "ours had no share");
    for (name, record) in records {
        assert_eq!(record.state, ContainerState::Complete, "{record:?}");
        let ours = u32::from(!upstream.ran.contains(&record.uuid));
        assert_eq!(batch.starts_of(name), ours, "{record:?}");
        // One lock, and one more if the container was unlocked; none was taken from its holder.
        let returned = i64::from(upstream.returned.contains(&record.uuid));
        assert_eq!(record.lock_count as i64, 1 + returned, "{record:?}");
    }
    let still = client(&stack.ready, "root")
        .all("api_client_authorizations", Query::new(), |t: &Value| {
            t["uuid"].as_str().unwrap_or_default()
        })
        .await
        .unwrap();
    let lives = still
        .iter()
        .any(|token| token["uuid"].as_str() == Some(upstream.own.uuid.as_str()));
    assert!(lives, "its token was ended");
}
on_every_backend!(an_upstream_like_dispatcher_neither_disturbs_nor_is_disturbed);

/// dispatch-local is in no partition.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_names_a_partition_is_left_to_others() {
    let stack = Stack::up().await;
    let elsewhere = json!({"scheduling_parameters": {"partitions": ["nosuch"]}});
    let (_, elsewhere) = stack.submit("elsewhere", "true", elsewhere).await;
    stack.wait_for_log_line(&elsewhere, "is in no partition", STEP_TIMEOUT);
    let (_, here) = stack.submit("here", "true", json!({})).await;
    complete(&stack.end(&here, STEP_TIMEOUT).await);
    let record = stack.container(&elsewhere).await;
    let expected = (ContainerState::Queued, 0);
    assert_eq!((record.state, record.lock_count), expected);
}

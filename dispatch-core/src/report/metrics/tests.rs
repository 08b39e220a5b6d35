//! Tests of the metrics: their names, and what they count.

use std::collections::BTreeSet;
use std::sync::Arc;

use arvados_client::ContainerUuid;

use super::*;
use crate::model::resources::{Admission, ResourceRequest};
use crate::model::world::{JobId, MonotonicTime};

const DOCUMENT: &str = include_str!("../../../../docs/metrics.md");

fn container(state: ContainerState, partition: &str, user: &str) -> ObservedContainer {
    ObservedContainer {
        state,
        priority: 1,
        etag: String::new(),
        holder: LockHolder::Nobody,
        needs: ResourceRequest {
            partitions: vec![partition.to_owned()],
            ..ResourceRequest::default()
        },
        owner: Some(Arc::new(Owner {
            username: Some(user.to_owned()),
            ..Owner::default()
        })),
        requested_by: None,
        created_at: Some("2026-11-26T00:00:00Z".parse().unwrap()),
        locks: 0,
        fit: Admission::Now,
        seen: MonotonicTime::default(),
        end: None,
    }
}

/// A queued and a running container, three jobs, and a time ten minutes after their creation.
fn two_containers() -> (World, Timestamp) {
    let mut world = World::default();
    let now: Timestamp = "2026-11-26T00:10:00Z".parse().unwrap();
    let [queued, running] = [(); 2].map(|()| ContainerUuid::generate("zzzzz"));
    let queued_record = container(ContainerState::Queued, "main", "ada");
    world.containers.insert(queued, queued_record);
    let running_record = container(ContainerState::Running, "gpu", "bob");
    world.containers.insert(running.clone(), running_record);
    let job = |id: &str, node: Option<&str>, ended| Job {
        id: JobId(id.to_owned()),
        container: running.clone(),
        attempt: None,
        ended,
        node: node.map(str::to_owned),
    };
    let jobs = vec![
        job("1", Some("n1"), false),
        job("2", None, false),
        job("3", None, true),
    ];
    world.listing = Some(JobListing::new(MonotonicTime::default(), jobs));
    (world, now)
}

/// The documents list the metrics that exist, and no others.
#[test]
fn the_document_has_every_name() {
    let metrics = Metrics::default();
    let (world, _) = two_containers();
    // A family without values has no name in the text.
    metrics.update(&world, Timestamp::now());
    metrics.count(&Decision::DecidedToRun {
        container: ContainerUuid::generate("zzzzz"),
        attempt: arvados_client::TokenUuid::generate("zzzzz"),
    });
    let text = metrics.text().unwrap();
    let is_name = |line: &'_ str| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned());
    let names: BTreeSet<String> = text.lines().filter_map(is_name).collect();
    let rows = DOCUMENT.lines().filter_map(|line| {
        let name = line.strip_prefix("| `arvados_dispatch_")?;
        let name = name.split(['`', '{']).next()?;
        Some(format!(
            "arvados_dispatch_{}",
            name.trim_end_matches("_total")
        ))
    });
    assert_eq!(rows.collect::<BTreeSet<_>>(), names);
    // Alert rules use no other names.
    let words = DOCUMENT.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    for word in words.filter(|word| word.starts_with("arvados_dispatch_")) {
        let suffixes = ["_total", "_bucket", "_sum", "_count"];
        let plain = suffixes.iter().find_map(|suffix| word.strip_suffix(suffix));
        assert!(names.contains(plain.unwrap_or(word)), "{word}");
    }
}

#[test]
fn containers_and_jobs_are_counted() {
    let metrics = Metrics::default();
    let (world, now) = two_containers();
    metrics.update(&world, now);
    metrics.scheduler_answered();
    let text = metrics.text().unwrap();
    for line in [
        "arvados_dispatch_containers{state=\"Queued\"} 1",
        "arvados_dispatch_partition_containers{partition=\"gpu\",state=\"Running\"} 1",
        "arvados_dispatch_user_containers{user=\"ada\",state=\"Queued\"} 1",
        "arvados_dispatch_jobs{state=\"running\"} 1",
        "arvados_dispatch_jobs{state=\"pending\"} 1",
        "arvados_dispatch_jobs{state=\"ended\"} 1",
        "arvados_dispatch_oldest_queued_seconds 600.0",
        "arvados_dispatch_api_answered_timestamp_seconds 0.0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(
        !text.contains("scheduler_answered_timestamp_seconds 0.0"),
        "{text}"
    );
    metrics.update(&World::default(), now);
    let text = metrics.text().unwrap();
    assert!(!text.contains("Queued"), "{text}");
    assert!(text.contains("oldest_queued_seconds 0.0"), "{text}");
}

/// Users name partitions, so their number has no limit.
#[test]
fn labels_that_users_invent_are_bounded() {
    let mut all: Vec<ObservedContainer> = (0..1000)
        .map(|n| container(ContainerState::Queued, &format!("p{n:04}"), "ada"))
        .collect();
    all.push(container(ContainerState::Queued, "p0999", "ada"));
    let counts = counts(all.iter(), partition);
    let labels: BTreeSet<&str> = counts.keys().map(|(label, _)| label.as_str()).collect();
    assert_eq!(labels.len(), MAX_LABEL_VALUES + 1);
    assert!(labels.contains("p0999"), "the most frequent ones are kept");
    assert_eq!(counts.values().sum::<i64>(), 1001);
    let long = container(ContainerState::Queued, &"p".repeat(1 << 20), "ada");
    assert_eq!(partition(&long).len(), MAX_LABEL_LENGTH);
}

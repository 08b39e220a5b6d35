//! How long deciding takes with 10,000 containers, beside copying their records.

use std::hint::black_box;
use std::time::{Duration, Instant};

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::model::world::{
    Attempt, Job, JobId, JobListing, LockHolder, MonotonicTime, ObservedContainer, Phase, World,
};
use dispatch_core::{Policy, plan};

const CONTAINERS: usize = 10_000;
const ROUNDS: usize = 101;

/// `running` of them with a job, the rest Queued.
fn world(running: usize) -> World {
    let began = |seconds| MonotonicTime(Duration::from_secs(seconds));
    let mut world = World {
        now: began(100),
        ..World::default()
    };
    let mut jobs = Vec::new();
    for n in 0..CONTAINERS {
        let uuid = ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap();
        let token = TokenUuid::parse(&format!("zzzzz-gj3su-{n:015}")).unwrap();
        let runs = n < running;
        if runs {
            let phase = Phase::Submitted(began(1));
            let token = token.clone();
            world
                .attempts
                .insert(uuid.clone(), Attempt { token, phase });
            jobs.push(Job {
                id: JobId(n.to_string()),
                container: uuid.clone(),
                attempt: Some(world.attempts[&uuid].token.clone()),
                ended: false,
                node: None,
            });
        }
        let known = ObservedContainer {
            owner: None,
            requested_by: None,
            created_at: None,
            locks: 0,
            state: match runs {
                true => ContainerState::Running,
                false => ContainerState::Queued,
            },
            priority: 1 + (n as i64 * 7919) % 1000,
            etag: "etag".into(),
            holder: match runs {
                true => LockHolder::Ours(token),
                false => LockHolder::Nobody,
            },
            needs: ResourceRequest::default(),
            fit: Admission::Now,
            seen: began(99),
            end: None,
        };
        world.containers.insert(uuid, known);
    }
    world.previous = Some(JobListing::new(began(90), jobs.clone()));
    world.listing = Some(JobListing::new(began(98), jobs));
    world
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            work();
            began.elapsed()
        })
        .collect();
    times.sort();
    times[ROUNDS / 2]
}

fn main() {
    let policy = Policy {
        max_pending: 1000,
        start_timeout: None,
        max_supervisors: 50,
        max_supervisor_ram: None,
        counts_running: false,
        may_start: true,
    };
    for (what, running) in [
        ("all running", CONTAINERS),
        ("half running, half queued", CONTAINERS / 2),
        ("all queued", 0),
    ] {
        let world = world(running);
        let planned = median(|| {
            black_box(plan(&world, &policy).count());
        });
        let copied = median(|| {
            black_box(world.containers.clone());
        });
        println!(
            "plan for {CONTAINERS} containers, {what}: {:.2} ms, vs copying their records: {:.2}",
            planned.as_secs_f64() * 1e3,
            planned.as_secs_f64() / copied.as_secs_f64()
        );
    }
}

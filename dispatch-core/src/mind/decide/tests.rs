//! What goes when, and what waits.

use arvados_client::Token;
use arvados_client::records::ContainerState;

use super::*;
use crate::engine::Settings;
use crate::needs::{Fit, Needs};
use crate::scheduler::Batching;
use crate::world::{Attempt, Holder, Known, Listing, Phase};

const START: Moment = Moment(Duration::from_secs(100));

/// A dispatcher that has looked, and is to ask its scheduler not more than once a second.
fn mind(most: usize) -> Mind {
    let settings = Settings {
        commands_per_second: 1.0,
        max_pending: 1000,
        ..Settings::default()
    };
    let mut mind = Mind::new(settings, Batching { most, alike: None });
    mind.world.listing = Some(Listing::new(START, Vec::new()));
    mind.world.previous = Some(Listing::new(START, Vec::new()));
    mind
}

fn known(state: ContainerState, holder: Holder, priority: i64) -> Known {
    Known {
        state,
        priority,
        etag: String::new(),
        holder,
        needs: Needs::default(),
        fit: Fit::Now,
        seen: START,
    }
}

/// A container that is locked and not submitted.
fn locked(mind: &mut Mind, priority: i64) -> ContainerUuid {
    let container = ContainerUuid::generate("zzzzz");
    let token = AttemptToken {
        uuid: TokenUuid::generate("zzzzz"),
        token: Token::new("secret"),
        expires_at: None,
    };
    let holder = Holder::Ours(token.uuid.clone());
    let attempt = Attempt {
        token: token.uuid.clone(),
        phase: Phase::Locked,
    };
    mind.world.attempts.insert(container.clone(), attempt);
    mind.tokens.insert(container.clone(), token);
    let known = known(ContainerState::Locked, holder, priority);
    mind.world.containers.insert(container.clone(), known);
    container
}

fn decide(mind: &mut Mind, now: Moment) -> Vec<Task> {
    mind.decide(now, |_| false)
}

fn submitted(tasks: &[Task]) -> Vec<Vec<ContainerUuid>> {
    let submitted = |task: &Task| match task {
        Task::Submit(all) => Some(all.iter().map(|one| one.container.clone()).collect()),
        _ => None,
    };
    tasks.iter().filter_map(submitted).collect()
}

#[test]
fn what_the_scheduler_ran_by_itself_counts() {
    let mut mind = mind(500);
    locked(&mut mind, 1);
    mind.spend(START, 1000);
    assert!(submitted(&decide(&mut mind, START)).is_empty());
    let later = Moment(START.0 + Duration::from_secs(1001));
    assert_eq!(submitted(&decide(&mut mind, later)).len(), 1);
}

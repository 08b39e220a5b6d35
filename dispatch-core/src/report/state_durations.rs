//! Measures how long containers are Locked before they run, and how long they run.
//!
//! Input: the states of this dispatcher's containers at each poll. Output: durations, for the
//! histograms. They are as exact as the poll interval.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

/// A duration that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateDuration {
    /// From the lock until crunch-run runs the command.
    Locked(Duration),
    /// From there to the end.
    Running(Duration),
}

/// The state of a container, and since when; none if it began before this process.
type Since = (ContainerState, Option<Instant>);

/// States of containers that have not ended.
#[derive(Debug, Default)]
pub(super) struct StateDurations {
    since: BTreeMap<ContainerUuid, Since>,
    has_polled: bool,
}

impl StateDurations {
    /// Records the states at one poll. Returns the durations that ended since the last one.
    pub(super) fn record<'a>(
        &mut self,
        containers: impl Iterator<Item = (&'a ContainerUuid, &'a ContainerState)>,
        now: Instant,
    ) -> Vec<StateDuration> {
        let mut old = std::mem::take(&mut self.since);
        let mut measured = Vec::new();
        let began = self.has_polled.then_some(now);
        for (uuid, state) in containers {
            let known = old.remove(uuid);
            let since = match known {
                Some((before, since)) if before == *state => since,
                Some((before, since)) => {
                    measured.extend(measure(&before, Some(state), since, now));
                    Some(now)
                }
                None => began,
            };
            if !state.is_final() {
                self.since.insert(uuid.clone(), (state.clone(), since));
            }
        }
        for (before, since) in old.into_values() {
            measured.extend(measure(&before, None, since, now));
        }
        self.has_polled = true;
        measured
    }
}

/// The duration of the state `before`, which was followed by `after`; none is a record that is not
/// followed any more.
fn measure(
    before: &ContainerState,
    after: Option<&ContainerState>,
    since: Option<Instant>,
    now: Instant,
) -> Option<StateDuration> {
    let took = now.duration_since(since?);
    match (before, after) {
        (ContainerState::Locked, Some(ContainerState::Running)) => {
            Some(StateDuration::Locked(took))
        }
        (ContainerState::Running, None) => Some(StateDuration::Running(took)),
        (ContainerState::Running, Some(after)) if after.is_final() => {
            Some(StateDuration::Running(took))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ContainerState::{Complete, Locked, Queued, Running};

    #[test]
    fn a_duration_is_measured_if_both_ends_were_seen() {
        let start = Instant::now();
        let container = ContainerUuid::generate("zzzzz");
        let seconds = Duration::from_secs;
        #[rustfmt::skip]
        let rows: [(&[Option<ContainerState>], Vec<StateDuration>); 6] = [
            (&[None, Some(Locked), Some(Running), Some(Complete), None], vec![StateDuration::Locked(seconds(1)), StateDuration::Running(seconds(1))]),
            (&[None, Some(Locked), Some(Locked), Some(Running), None], vec![StateDuration::Locked(seconds(2)), StateDuration::Running(seconds(1))]),
            // Both began before the process.
            (&[Some(Locked), Some(Running), None], vec![StateDuration::Running(seconds(1))]),
            (&[Some(Running), Some(Complete)], vec![]),
            // Given back to the queue.
            (&[None, Some(Locked), Some(Queued), None], vec![]),
            (&[None, Some(Locked), None], vec![]),
        ];
        for (states, expected) in rows {
            let mut durations = StateDurations::default();
            let mut measured = Vec::new();
            for (second, state) in states.iter().enumerate() {
                let now = start + seconds(second as u64);
                let containers = state.iter().map(|state| (&container, state));
                measured.extend(durations.record(containers, now));
            }
            assert_eq!(measured, expected, "{states:?}");
        }
    }
}

//! Lines of the log that say the same of many containers. After an outage or a restart, thousands
//! of them would hide all others. The audit file and the server have each.
//!
//! Input: decisions. Output: whether to log one by itself, and later how many were not. Pure:
//! callers pass the time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::decision::Decision;

/// Maximum number of lines by themselves within [`WINDOW`].
const MAX_SINGLE: usize = 3;
/// Time from the first line to the one with the number of the rest.
pub const WINDOW: Duration = Duration::from_secs(10);

/// The decisions of the last seconds, by their name and their words but for numbers.
#[derive(Debug, Default)]
pub struct AlikeLines(BTreeMap<(&'static str, String), Alike>);

#[derive(Debug)]
struct Alike {
    since: Instant,
    count: usize,
    newest: Decision,
}

impl AlikeLines {
    /// Whether to log the decision by itself: the line of a start or an end always has its
    /// container.
    pub fn admits(&mut self, event: &Decision, now: Instant) -> bool {
        if event.is_routine() || matches!(event, Decision::Ended { .. }) {
            return true;
        }
        let words = event.text().replace(|c: char| c.is_ascii_digit(), "");
        let alike = self.0.entry((event.name(), words)).or_insert(Alike {
            since: now,
            count: 0,
            newest: event.clone(),
        });
        alike.count += 1;
        if alike.count > MAX_SINGLE {
            alike.newest = event.clone();
        }
        alike.count <= MAX_SINGLE
    }

    /// The newest decision of each kind of which some were not logged, with their number, once the
    /// first is old enough.
    pub fn take_due(&mut self, now: Instant) -> Vec<(Decision, usize)> {
        let due = self
            .0
            .extract_if(.., |_, alike| now - alike.since >= WINDOW);
        due.filter(|(_, alike)| alike.count > MAX_SINGLE)
            .map(|(_, alike)| (alike.newest, alike.count - MAX_SINGLE))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::ContainerUuid;

    use super::*;
    use crate::model::world::JobId;

    #[test]
    fn many_alike_are_three_lines_and_a_number() {
        let not_run = |n: usize, why: &str| Decision::DecidedNotToRun {
            container: ContainerUuid::generate("zzzzz"),
            reason: format!("job {n} waits for {why}"),
        };
        let dispatched = |n: usize| Decision::Dispatched {
            container: ContainerUuid::generate("zzzzz"),
            job: JobId(n.to_string()),
            owner: None,
        };
        let (start, mut lines) = (Instant::now(), AlikeLines::default());
        let logged = |lines: &mut AlikeLines, event: &dyn Fn(usize) -> Decision| {
            (0..14).filter(|n| lines.admits(&event(*n), start)).count()
        };
        assert_eq!(logged(&mut lines, &|n| not_run(n, "an administrator")), 3);
        assert!(lines.admits(&not_run(1, "a node"), start));
        assert_eq!(logged(&mut lines, &dispatched), 14);
        let due = |lines: &mut AlikeLines, now| -> Vec<(String, usize)> {
            let due = lines.take_due(now).into_iter();
            due.map(|(event, count)| (event.text(), count)).collect()
        };
        assert_eq!(due(&mut lines, start + WINDOW / 2), []);
        let text = "not run now: job 13 waits for an administrator".to_owned();
        assert_eq!(due(&mut lines, start + WINDOW), [(text, 11)]);
        assert_eq!(due(&mut lines, start + 2 * WINDOW), []);
        assert!(lines.admits(&not_run(1, "an administrator"), start));
    }
}

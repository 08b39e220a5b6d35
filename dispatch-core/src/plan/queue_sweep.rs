//! How far the queue is read while nothing at its head can ever run here.
//!
//! Input: the end of the part that a poll read, and the admissions of the containers known then.
//! Output: where the next poll reads one more page. A poll holds up whoever becomes queued
//! meanwhile, so each reads the head and one further page, however long the queue is.

use crate::model::resources::Admission;
use crate::model::snapshot::{QueueCursor, QueueRead};

/// Number of containers that hide the rest of the queue if they can never run. No server cuts a
/// page shorter.
const HIDING: usize = 100;

/// A pass over the queue, page by page. It stands still while a known container can run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueSweep {
    /// Where the next poll reads a page besides the head.
    at: Option<QueueCursor>,
    /// Whether a pass came to the end of the queue and found nothing that can run.
    passed: bool,
    /// Whether something that is known can run, so that the pass stands still.
    stands: bool,
    /// Whether so much of what is known can never run that it hides the rest of the queue.
    hides_rest: bool,
}

impl QueueSweep {
    /// What the next poll reads of the queue.
    pub fn read(&self) -> QueueRead {
        match &self.at {
            Some(at) => QueueRead::HeadAnd(at.clone()),
            None => QueueRead::Head,
        }
    }

    /// Moves on if nothing that is known can ever run here (`fits`), and ends if most of it can.
    /// `next`: where the queue continues after what was read. Returns whether a pass has ended.
    pub fn advance(&mut self, next: Option<QueueCursor>, fits: &[Admission]) -> bool {
        let never = fits.iter().filter(|fit| fit.never().is_some()).count();
        self.stands = never < fits.len();
        self.hides_rest = never >= HIDING || (never > 0 && 2 * never >= fits.len());
        if self.stands {
            let stays = next.is_some() && self.hides_rest;
            self.at = self.at.take().filter(|_| stays);
            self.passed = false;
            return false;
        }
        let before = std::mem::replace(&mut self.at, next);
        let has_ended = self.at.is_none() && before.is_some();
        self.passed = has_ended || (self.passed && self.at.is_some());
        has_ended
    }

    /// Whether a pass is under way or will begin again: what was told of containers that no poll
    /// shows now still counts.
    pub fn is_under_way(&self) -> bool {
        self.at.is_some() || self.passed
    }

    /// Whether the next page of the queue may have as few that can run as the last.
    pub fn is_slow(&self) -> bool {
        self.at.is_some() && self.hides_rest
    }

    /// Whether only the rest of the queue may have what can run, and no pass has shown that it has
    /// not.
    pub fn is_urgent(&self) -> bool {
        self.at.is_some() && !self.passed && !self.stands
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::ContainerUuid;

    use super::*;

    fn page(n: u32) -> Option<QueueCursor> {
        let uuid = ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap();
        Some(QueueCursor { priority: 1, uuid })
    }

    #[test]
    fn one_page_after_the_other_is_read_until_something_can_run() {
        let never = || {
            vec![
                Admission::Never(String::new()),
                Admission::Never(String::new()),
            ]
        };
        let one = || {
            vec![
                Admission::Never(String::new()),
                Admission::Later(String::new()),
            ]
        };
        let many = || {
            let mut many = vec![Admission::Never(String::new()); HIDING];
            many.resize(3 * HIDING, Admission::Now);
            many
        };
        let most = || [one(), vec![Admission::Now]].concat();
        let mut sweep = QueueSweep::default();
        #[rustfmt::skip]
        let rows = [
            // what continues, admissions, what is read then, has it ended, is it urgent
            (page(1), one(), None, false, false),
            (page(1), never(), page(1), false, true),
            (page(2), never(), page(2), false, true),
            // Something can run: the page stays.
            (page(3), one(), page(2), false, false),
            (page(3), never(), page(3), false, true),
            (None, never(), None, true, false),
            // The second pass has time.
            (page(1), never(), page(1), false, false),
            (page(2), never(), page(2), false, false),
            (page(3), one(), page(2), false, false),
            // Most of the queue can run: it has no further page of its own.
            (page(3), most(), None, false, false),
            (page(1), never(), page(1), false, true),
            // All is taken. What comes next may well run.
            (page(2), vec![], page(2), false, true),
            (page(3), one(), page(2), false, false),
            // However many can run, those at the head hide them.
            (page(3), many(), page(2), false, false),
            // The page is empty.
            (None, one(), None, false, false),
            (None, vec![], None, false, false),
            // What has no end yet is read again.
            (None, never(), None, false, false),
        ];
        for (n, (next, fits, at, has_ended, is_urgent)) in rows.into_iter().enumerate() {
            assert_eq!(sweep.advance(next, &fits), has_ended, "row {n}");
            let is_slow = at.is_some() && fits.iter().any(|fit| fit.never().is_some());
            let read = at.map_or(QueueRead::Head, QueueRead::HeadAnd);
            assert_eq!(sweep.read(), read, "row {n}");
            assert_eq!(sweep.is_urgent(), is_urgent, "row {n}");
            assert_eq!(sweep.is_slow(), is_slow, "row {n}");
            let is_under_way = read != QueueRead::Head || has_ended;
            assert_eq!(sweep.is_under_way(), is_under_way, "row {n}");
        }
    }
}

//! As which user the jobs of a class that are charged alike are tested. Pure.
//!
//! A site may refuse the jobs of one user by a rule of its own, for which each job names its user
//! (job_submit.lua of Slurm, SUBMIT_REQUIREMENT_NAMES of HTCondor). A test as another user tells
//! such a rule from a limit of all. Input: whose jobs were accepted or refused, and who waits.
//! Output: as whom to test next.

use std::collections::BTreeMap;

use arvados_client::UserUuid;

use crate::model::charge_class::{ChargeClass, UserClass};
use crate::model::owner::KnownCharge;
use crate::model::resources::ResourceRequest;

/// Maximum number of users as whom one class is tested.
const MAX_USERS: usize = 64;

/// The users of one class.
#[derive(Debug, Default)]
pub struct Testers {
    /// Whose job, or test, was accepted last.
    accepted: KnownCharge,
    /// The user before, whose job was accepted last of all others'.
    accepted_before: KnownCharge,
    /// As whom the newest test is done.
    asked: KnownCharge,
    /// Whether a test or a job was refused since one was accepted.
    is_refused: bool,
    /// Whose job was refused when the class was first held back, or whose test.
    refused: KnownCharge,
    /// Users who wait while the class is held back, each with the number of the newest test as
    /// this user; 0 for none.
    waiting: BTreeMap<UserUuid, (KnownCharge, u64)>,
    /// Number of the newest test.
    tests: u64,
    /// Users whose tests were refused, as long as others may still be accepted.
    first_refused: Vec<UserClass>,
}

fn user_of(charge: &KnownCharge) -> Option<&UserUuid> {
    charge.as_ref()?.owner.as_ref()?.user.as_ref()
}

impl Testers {
    /// The scheduler accepted a job.
    pub fn accepted(&mut self, needs: &ResourceRequest) {
        self.remember(needs.charged_to.clone());
    }

    fn remember(&mut self, accepted: KnownCharge) {
        let is_other = user_of(&accepted) != user_of(&self.accepted);
        let before = std::mem::replace(&mut self.accepted, accepted);
        if is_other {
            self.accepted_before = before;
        }
        self.is_refused = false;
    }

    /// The charge of another user whose job was accepted.
    pub fn accepted_beside(&self, needs: &ResourceRequest) -> KnownCharge {
        let user = user_of(&needs.charged_to);
        let is_other =
            |charge: &&KnownCharge| user_of(charge).is_some_and(|accepted| Some(accepted) != user);
        let mut known = [&self.accepted, &self.accepted_before].into_iter();
        known.find(is_other)?.clone()
    }

    /// The class is held back from now on, because the job of this user was refused.
    pub fn hold(&mut self, needs: &ResourceRequest) {
        let charge = &needs.charged_to;
        (self.refused, self.asked, self.is_refused) = (charge.clone(), charge.clone(), true);
        self.waiting.clear();
        self.tests = 1;
        if let Some(user) = user_of(charge) {
            self.waiting.insert(user.clone(), (charge.clone(), 1));
        }
    }

    /// A container of this user waits. True if a test as this user may tell something new.
    pub fn wait(&mut self, needs: &ResourceRequest) -> bool {
        let is_new = user_of(&needs.charged_to)
            .filter(|user| self.waiting.len() < MAX_USERS && !self.waiting.contains_key(*user));
        let Some(user) = is_new else { return false };
        let entry = (needs.charged_to.clone(), 0);
        self.waiting.insert(user.clone(), entry);
        self.is_refused
    }

    /// The jobs of this user are refused, whatever others have.
    pub fn leave(&mut self, of_user: &UserClass) {
        if let Some(user) = &of_user.user {
            self.waiting.remove(user);
        }
    }

    /// As whom to do the next test: as who was accepted, or else as the user who was not asked for
    /// the longest time.
    pub fn next(&mut self) -> KnownCharge {
        let longest = self.waiting.values_mut().min_by_key(|(_, test)| *test);
        self.asked = match longest {
            _ if !self.is_refused && self.accepted.is_some() => self.accepted.clone(),
            Some((charge, test)) => {
                self.tests += 1;
                *test = self.tests;
                charge.clone()
            }
            None => None,
        };
        self.asked.clone()
    }

    /// A job has ended: who was accepted before is asked first.
    pub fn place_freed(&mut self) {
        self.is_refused = false;
    }

    /// The newest test was refused. It was done as the user of the class if nobody was known yet.
    pub fn test_refused(&mut self, of_class: KnownCharge) {
        self.is_refused = true;
        self.asked = self.asked.take().or(of_class);
        self.refused = self.refused.take().or_else(|| self.asked.clone());
    }

    /// The user of the newest test, which was refused, if users wait who were not asked yet: a rule
    /// against this user is as likely as a limit of all.
    pub fn refused_before_others(&mut self, charged: &ChargeClass) -> Option<UserClass> {
        self.waiting.values().find(|(_, test)| *test == 0)?;
        let refused = UserClass {
            charged: charged.clone(),
            user: Some(user_of(&self.asked)?.clone()),
        };
        self.first_refused.push(refused.clone());
        Some(refused)
    }

    /// The users whose tests were refused before that of another one, which is answered now, and
    /// whether each is that one.
    pub fn take_first_refused(&mut self) -> Vec<(UserClass, bool)> {
        let asked = user_of(&self.asked);
        let all = std::mem::take(&mut self.first_refused).into_iter();
        let with_asked = |refused: UserClass| {
            let is_asked = refused.user.as_ref() == asked;
            (refused, is_asked)
        };
        all.map(with_asked).collect()
    }

    /// Whether this user waits and was not asked yet.
    pub fn is_unasked(&self, needs: &ResourceRequest) -> bool {
        let waits = user_of(&needs.charged_to).and_then(|user| self.waiting.get(user));
        waits.is_some_and(|(_, test)| *test == 0)
    }

    /// The newest test was accepted. Returns the charge of the user whose job was refused, if that
    /// is another one.
    pub fn test_accepted(&mut self) -> KnownCharge {
        self.remember(self.asked.clone());
        let is_other = user_of(&self.asked) != user_of(&self.refused);
        self.refused.take().filter(|_| is_other)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::owner::{Charge, Owner};

    fn of(n: usize) -> ResourceRequest {
        let owner = Owner {
            user: UserUuid::parse(&format!("zzzzz-tpzed-{n:015}")).ok(),
            ..Owner::default()
        };
        let charge = Charge::new(Some(Arc::new(owner)), String::new());
        ResourceRequest {
            charged_to: Some(Arc::new(charge)),
            ..ResourceRequest::default()
        }
    }

    fn user(charge: KnownCharge) -> Option<UserUuid> {
        charge?.owner.as_ref()?.user.clone()
    }

    #[test]
    fn who_was_not_asked_for_the_longest_time_is_next() {
        let mut testers = Testers::default();
        testers.hold(&of(2));
        assert!(!testers.wait(&of(2)), "is the one who was refused");
        assert!(testers.wait(&of(3)) && testers.wait(&of(1)) && !testers.wait(&of(1)));
        let asked: Vec<_> = (0..6).map(|_| user(testers.next())).collect();
        let expected = [1, 3, 2, 1, 3, 2].map(|n| user(of(n).charged_to));
        assert_eq!(asked, expected);
        assert_eq!(testers.test_accepted(), None, "2 was asked");
        testers.hold(&of(2));
        testers.wait(&of(3));
        testers.next();
        assert_eq!(user(testers.test_accepted()), user(of(2).charged_to));
        // As long as it is accepted.
        testers.wait(&of(4));
        assert_eq!(user(testers.next()), user(of(3).charged_to));
        testers.test_refused(None);
        assert_eq!(user(testers.next()), user(of(4).charged_to));
        let taken = (10..1000).filter(|n| testers.wait(&of(*n))).count();
        assert_eq!(taken + 3, MAX_USERS);
    }

    #[test]
    fn another_user_whose_job_was_accepted_is_asked_first() {
        // Whose jobs were accepted, one after the other; whose is refused; who is asked.
        let rows: [(&[usize], usize, Option<usize>); 6] = [
            (&[], 1, None),
            (&[1, 1], 1, None),
            (&[1], 2, Some(1)),
            (&[1, 2, 2], 2, Some(1)),
            (&[1, 2], 3, Some(2)),
            (&[1, 2, 1], 1, Some(2)),
        ];
        for (accepted, refused, expected) in rows {
            let mut testers = Testers::default();
            for n in accepted {
                testers.accepted(&of(*n));
            }
            let asked = user(testers.accepted_beside(&of(refused)));
            let expected = expected.and_then(|n| user(of(n).charged_to));
            assert_eq!(asked, expected, "{accepted:?} {refused}");
        }
    }
}

//! Starting one crunch-run: room is reserved, the old directory cleared, the new one made.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use dispatch_core::scheduler::{Order, SchedulerError};
use dispatch_core::world::JobId;
use fail_points::fail_point;

use super::{Known, NAME, Shared, now};
use crate::executor::StartError;
use crate::job_dir::{End, JobDir, Notes, Sign};
use crate::load::Load;
use crate::reservation::Reservation;
use crate::undelivered::UNDELIVERED;

impl Shared {
    /// Reserves room and starts crunch-run.
    pub(super) async fn start(self: &Arc<Self>, order: Order) -> Result<JobId, SchedulerError> {
        let container = order.container.clone();
        let dir = self.dir(&container);
        let refused = |detail: String| SchedulerError::Refused {
            scheduler: NAME,
            container: container.clone(),
            detail,
        };
        let load = Load::of(&order.needs).map_err(refused)?;
        if let Ok(Sign::Alive(_)) = dir.sign() {
            return Err(SchedulerError::Ambiguous {
                scheduler: NAME,
                container,
                detail: "an earlier crunch-run of this container is still here".into(),
            });
        }
        let notes = {
            let mut state = self.state();
            let reservations: Vec<Reservation> = state
                .jobs
                .iter()
                .filter(|(other, _)| **other != container)
                .filter_map(|(_, job)| job.notes.as_ref().map(|n| n.reservation.clone()))
                .collect();
            let reservation = Reservation::make(&state.machine, reservations.iter(), load)
                .map_err(|short| {
                    let kinds: Vec<String> = short
                        .iter()
                        .map(|kind| kind.words(load.get(*kind)))
                        .collect();
                    refused(format!("there is no room for {} now", kinds.join(" and ")))
                })?;
            let notes = Notes {
                attempt: order.attempt.clone(),
                reservation,
                limit: order.needs.max_run_time,
                submitted_at: now(),
            };
            state.starting.insert(container.clone());
            state.jobs.insert(
                container.clone(),
                Known {
                    notes: Some(notes.clone()),
                    worker: None,
                    started: None,
                },
            );
            notes
        };
        let started = self.try_start(&dir, &notes, &order).await;
        let mut state = self.state();
        state.starting.remove(&container);
        match started {
            Ok(pid) => {
                if let Some(known) = state.jobs.get_mut(&container) {
                    known.started = Some(Instant::now());
                }
                Ok(JobId(pid.to_string()))
            }
            Err(StartError::Unknown(detail)) => Err(SchedulerError::Ambiguous {
                scheduler: NAME,
                container,
                detail,
            }),
            Err(error) => {
                state.jobs.remove(&container);
                Err(refused(error.to_string()))
            }
        }
    }

    async fn try_start(
        self: &Arc<Self>,
        dir: &JobDir,
        notes: &Notes,
        order: &Order,
    ) -> Result<u32, StartError> {
        self.clear(dir)?;
        fail_point("local.place-cleared");
        dir.create(notes, &order.credentials)?;
        self.executor.start(dir, notes).await
    }

    /// Makes room for a new attempt, or ends the last. Results that were not delivered are kept.
    pub(super) fn clear(&self, dir: &JobDir) -> io::Result<()> {
        match dir.sign() {
            Ok(Sign::Ended(End::Code(UNDELIVERED))) => {
                let kept = dir.set_aside(self.run_dir.path())?;
                tracing::warn!(container = %dir.container, kept = %kept.display(), "undelivered results were kept");
                Ok(())
            }
            // A crunch-run that was killed could not tidy up its scratch space, whatever a later one noted as the end.
            Ok(Sign::Ended(_)) => {
                self.executor.clear_scratch(&dir.container)?;
                dir.remove()
            }
            // Somebody works there, or just looks, and there may be results in it.
            Ok(Sign::Alive(_)) => Err(io::ErrorKind::DirectoryNotEmpty.into()),
            Err(error) => Err(error),
        }
    }
}

//! Starts one crunch-run: reserves resources, discards the old job directory, creates the new one,
//! spawns the program.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crunch_contract::ExitCode;
use crunch_contract::job_dir::TOKEN_FILE;
use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::submit_host::job_directory_error;
use dispatch_core::scheduler::{SchedulerError, SubmitRequest};
use fail_points::fail_point;
use host_state::file::ignore_missing;
use host_state::trash;

use crate::crunch_run::StartError;
use crate::job_dir::{JobDir, JobRecord, JobStatus};
use crate::local::{NAME, Shared, TrackedJob, unix_time};
use crate::machine_claims::MachineClaims;
use crate::reservation::Reservation;
use crate::resources::ResourceVector;

/// Why nothing could be reserved for a job.
enum NoRoom {
    /// Another job was faster, or has not ended yet. The container keeps its lock and goes on
    /// waiting: locks are few.
    Now(String),
    Ever(String),
}

impl Shared {
    /// Reserves resources and starts crunch-run; returns the id of the job.
    pub(crate) async fn start(
        self: &Arc<Self>,
        order: SubmitRequest,
    ) -> Result<JobId, SchedulerError> {
        let container = order.container.clone();
        let dir = self.job_dir(&container);
        let refused = |detail: String| SchedulerError::Refused {
            scheduler: NAME,
            container: container.clone(),
            detail,
        };
        let ambiguous = |detail: String| SchedulerError::Ambiguous {
            scheduler: NAME,
            container: container.clone(),
            detail,
        };
        let load = ResourceVector::of(&order.needs).map_err(refused)?;
        if let Ok(JobStatus::Alive(_)) = dir.status() {
            let why = "an earlier crunch-run of this container still runs here";
            return Err(ambiguous(why.to_owned()));
        }
        let record = match self.reserve(&order, load).await {
            Ok(record) => record,
            Err(NoRoom::Now(reason)) => {
                let mut state = self.state.lock();
                state.without_room.insert(container.clone(), reason);
                return Err(SchedulerError::NotTried { container });
            }
            Err(NoRoom::Ever(detail)) => return Err(refused(detail)),
        };
        let started = self.try_start(&dir, &record, &order).await;
        let mut state = self.state.lock();
        state.starting.remove(&container);
        match started {
            Ok(pid) => {
                if let Some(job) = state.jobs.get_mut(&container) {
                    job.started = Some(Instant::now());
                }
                drop(state);
                // From now on the claim outlives this dispatcher.
                if let Some(claims) = &self.claims {
                    claims.publish(&container, &record.reservation, pid);
                }
                Ok(JobId(pid.to_string()))
            }
            Err(StartError::Unknown(detail)) => Err(ambiguous(detail)),
            Err(error) => {
                state.jobs.remove(&container);
                drop(state);
                self.write_claims();
                Err(match &error {
                    StartError::Directory(error) => {
                        job_directory_error(&container, dir.path(), error)
                    }
                    StartError::Refused { code, .. }
                        if *code == i32::from(ExitCode::NotOurs.code()) =>
                    {
                        refused(error.to_string())
                    }
                    // crunch-run starts no job here, whatever its container is.
                    _ => SchedulerError::HostFault {
                        container,
                        detail: error.to_string(),
                    },
                })
            }
        }
    }

    /// Reserves resources for a job, and says so to the other dispatchers of this machine.
    async fn reserve(
        self: &Arc<Self>,
        order: &SubmitRequest,
        load: ResourceVector,
    ) -> Result<JobRecord, NoRoom> {
        let _lock = match &self.claims {
            None => None,
            Some(_) => {
                let shared = self.clone();
                let locking = tokio::task::spawn_blocking(move || {
                    let lock = shared.claims.as_ref().and_then(MachineClaims::lock);
                    shared.read_claims();
                    lock
                });
                let locked = locking.await;
                locked.map_err(|error| NoRoom::Ever(error.to_string()))?
            }
        };
        let container = &order.container;
        let _writing = self.claims.as_ref().map(MachineClaims::writing);
        let mut state = self.state.lock();
        let reservations: Vec<Reservation> = state
            .jobs
            .iter()
            .filter(|(other, _)| *other != container)
            .filter_map(|(_, job)| job.record.as_ref().map(|record| record.reservation.clone()))
            .collect();
        let left = state.machine_left();
        let reservation =
            Reservation::allocate(&left, reservations.iter(), load).map_err(|short| {
                let kinds: Vec<String> = short
                    .iter()
                    .map(|kind| kind.describe(load.get(*kind)))
                    .collect();
                let kinds = kinds.join(" and ");
                let would_fit = |beside: &[Reservation]| {
                    Reservation::allocate(&state.machine, beside.iter(), load).is_ok()
                };
                let waits = |holder| NoRoom::Now(format!("waits for {kinds}, which {holder}"));
                if would_fit(&reservations) {
                    waits("a job of others on this machine took first")
                } else if would_fit(&[]) {
                    waits("a job that is ending here still holds")
                } else {
                    NoRoom::Ever(format!("this machine does not have {kinds}"))
                }
            })?;
        let record = JobRecord {
            attempt: order.attempt.clone(),
            reservation,
            limit: order.needs.max_run_time,
            submitted_at: unix_time(),
        };
        state.starting.insert(container.clone());
        state.jobs.insert(
            container.clone(),
            TrackedJob {
                record: Some(record.clone()),
                worker: None,
                started: None,
            },
        );
        if let Some(claims) = &self.claims {
            claims.publish(container, &record.reservation, std::process::id());
        }
        Ok(record)
    }

    async fn try_start(
        self: &Arc<Self>,
        dir: &JobDir,
        record: &JobRecord,
        order: &SubmitRequest,
    ) -> Result<u32, StartError> {
        self.discard_job_dir(dir).await?;
        fail_point("local.place-cleared");
        dir.create(record, &order.credentials)?;
        let claims = self.claims.as_ref();
        let claim = claims.map(|claims| claims.path_of(&dir.container));
        self.crunch_run.start(dir, record, claim).await
    }

    /// [`discard_job_dir_blocking`](Self::discard_job_dir_blocking) on a blocking thread.
    pub(crate) async fn discard_job_dir(self: &Arc<Self>, dir: &JobDir) -> io::Result<()> {
        let (shared, dir) = (self.clone(), dir.clone());
        let discarding = tokio::task::spawn_blocking(move || shared.discard_job_dir_blocking(&dir));
        discarding.await.map_err(io::Error::other)?
    }

    /// Moves the directory and the scratch space of a job that ended into the trash, and
    /// undelivered results to `undelivered/`. Fails with `DirectoryNotEmpty` while a process holds
    /// the lock of the directory.
    pub(crate) fn discard_job_dir_blocking(&self, dir: &JobDir) -> io::Result<()> {
        match dir.status() {
            Ok(JobStatus::Ended(exit)) if exit.is(ExitCode::Undelivered) => {
                let kept = dir.quarantine(self.state_dir.path())?;
                tracing::warn!(container = %dir.container, kept = %kept.display(), "moved the undelivered results of the container out of the way");
                Ok(())
            }
            // A killed crunch-run left its scratch space, even if a later one recorded an exit.
            Ok(JobStatus::Ended(_)) => {
                self.crunch_run.discard_scratch(&dir.container)?;
                ignore_missing(std::fs::remove_file(dir.path().join(TOKEN_FILE)))?;
                trash::discard(dir.path())?;
                self.trash.wake();
                Ok(())
            }
            // A process works there, or tests the lock, and there may be results in it.
            Ok(JobStatus::Alive(_)) => Err(io::ErrorKind::DirectoryNotEmpty.into()),
            Err(error) => Err(error),
        }
    }
}

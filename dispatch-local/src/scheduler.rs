//! The local scheduler's answers to dispatch-core: one detached crunch-run per container, found
//! again by its directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use crunch_contract::ExitCode;
use crunch_contract::job_dir::LOG_DIR;
use dispatch_core::model::resources::{Admission, Capacity, ResourceRequest, Resources};
use dispatch_core::model::scheduling::{PendingOutlook, PendingReason};
use dispatch_core::model::world::{Job, JobId};
use dispatch_core::scheduler::submit_host::Precondition;
use dispatch_core::scheduler::{
    Candidate, Capabilities, Eviction, ExitCause, JobExit, Scheduler, SchedulerError, StillInUse,
    StopMode, SubmitRequest, Uncertainty,
};
use rustix::process::Signal;

use crate::backfill::{Running, Waiting, admit, latest_end, sum};
use crate::crunch_run_process::CrunchRunProcess;
use crate::fairness::{self, Head, left_to_others};
use crate::job_dir::{CrunchRunExit, JobStatus};
use crate::local::{Local, NAME, unix_time, uptime_milliseconds};
use crate::resources::{ResourceKind, ResourceVector};

/// Timeout of a crunch-run that wrote its final state and still cleans up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);
const CLEANUP_POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Scheduler for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn submit_host(&self) -> Option<&Precondition> {
        Some(&self.shared.submit_host)
    }

    fn admit(&self, candidates: &[Candidate], started: &[Candidate]) -> Vec<Admission> {
        // A few small files in memory. Older ones would admit what then finds no room.
        self.shared.read_claims();
        let mut state = self.shared.state.lock();
        let now = unix_time();
        let mut running: Vec<Running> = state
            .jobs
            .values()
            .filter_map(|job| job.record.as_ref())
            .map(|record| Running {
                load: record.reservation.resources(),
                ends: latest_end(record.submitted_at, record.limit),
            })
            .collect();
        let reserved = sum(&running);
        let by_others = self.shared.taken_by_others(&state.machine, reserved);
        running.extend(self.shared.trash_load(&state.machine));
        let of_jobs = sum(&running);
        let capacity = state.machine.capacity().minus(by_others);
        let left = state.machine_left().capacity().minus(by_others);
        let uptime = uptime_milliseconds();
        let next = left_to_others(&state.wants, state.head.as_ref(), left, uptime);
        let elsewhere = capacity.minus(left).plus(next);
        running.push(Running {
            load: elsewhere,
            ends: None,
        });
        // Containers that were locked and have no job yet.
        let locked: Vec<(&Candidate, ResourceVector)> = started
            .iter()
            .filter(|c| !state.jobs.contains_key(&c.container))
            .filter_map(|c| Some((c, ResourceVector::of(&c.needs).ok()?)))
            .collect();
        running.extend(locked.iter().map(|(c, load)| Running {
            load: *load,
            ends: latest_end(now, c.needs.max_run_time),
        }));
        let of_locked_too = of_jobs.plus(locked.iter().map(|(_, load)| *load).sum());
        let runners = |candidate: &Candidate| {
            let jobs = candidate.runners.iter();
            let jobs = jobs.filter_map(|runner| state.jobs.get(runner)?.record.as_ref());
            jobs.map(|record| record.reservation.resources()).sum()
        };
        let waiting: Vec<Waiting> = candidates
            .iter()
            .map(|c| Waiting {
                container: c.container.clone(),
                load: no_partition(&c.needs).and_then(|()| ResourceVector::of(&c.needs)),
                beside: runners(c),
                limit: c.needs.max_run_time,
            })
            .collect();
        let answers = admit(capacity, state.machine.largest(), &running, &waiting, now);
        state
            .without_room
            .retain(|container, _| locked.iter().any(|(c, _)| c.container == *container));
        // One that waits for room on the disk can start after no job's end.
        let is_later = |(answer, waiting): (&Admission, &Waiting)| {
            let load = waiting.load.as_ref();
            matches!(answer, Admission::Later(_)) && load.is_ok_and(|load| load.fits(&capacity))
        };
        // A container that was locked, and then found its room taken, goes before.
        let first = match locked.first() {
            Some((first, load)) => Some((&first.container, *load, of_jobs)),
            None => answers
                .iter()
                .zip(&waiting)
                .position(is_later)
                .and_then(|at| {
                    let first = &waiting[at];
                    Some((&first.container, first.load.clone().ok()?, of_locked_too))
                }),
        };
        let mut want = None;
        state.head = first.map(|(container, load, own)| {
            let known = state.head.take();
            let head = known.filter(|head| head.container == *container);
            let head = head.unwrap_or_else(|| Head {
                container: container.clone(),
                since: uptime,
            });
            want = fairness::want(&head, load, capacity.minus(own));
            head
        });
        let largest = state.machine.largest();
        let holders: BTreeSet<u32> = state.others.iter().map(|held| held.owner).collect();
        drop(state);
        let holders = name_users(&holders);
        self.shared.say_want(want);
        let is_step = |at: usize| self.only_dispatcher && !candidates[at].runners.is_empty();
        answers
            .into_iter()
            .enumerate()
            .map(|(at, answer)| match answer {
                Admission::Never(why) if is_step(at) && waiting[at].is_too_large(largest) => {
                    Admission::Impossible(why)
                }
                answer => {
                    let is_their_turn = next != ResourceVector::default();
                    name_others(answer, &holders, elsewhere, is_their_turn)
                }
            })
            .collect()
    }

    fn pending_reasons(&self) -> BTreeMap<ContainerUuid, PendingReason> {
        let state = self.shared.state.lock();
        let reason = |text: &String| PendingReason {
            outlook: PendingOutlook::Transient,
            text: text.clone(),
        };
        let waiting = state.without_room.iter();
        waiting
            .map(|(container, text)| (container.clone(), reason(text)))
            .collect()
    }

    fn capacity(&self) -> Option<Capacity> {
        let state = self.shared.state.lock();
        let capacity = state.machine.capacity();
        let left = state.machine_left().capacity();
        let used = state
            .jobs
            .values()
            .filter_map(|job| job.record.as_ref())
            .map(|record| record.reservation.resources())
            .sum();
        let by_others = self.shared.taken_by_others(&state.machine, used);
        let trash = self.shared.trash_load(&state.machine);
        let used = trash.map_or(used.plus(by_others), |trash| used.plus(trash.load));
        Some(Capacity {
            total: to_amount(capacity),
            free: to_amount(left.minus(used)),
            others: to_amount(capacity.minus(left)),
        })
    }

    /// There is no minimum interval: a scan of job directories loads no other service.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            min_listing_interval: Duration::ZERO,
            ..Capabilities::default()
        }
    }

    /// Scans the job directories, and tracks the jobs that are alive.
    async fn list_jobs(&self) -> Result<Vec<Job>, SchedulerError> {
        let shared = self.shared.clone();
        let scanning = tokio::task::spawn_blocking(move || {
            let scan = shared.scan_job_dirs()?;
            Ok::<_, io::Error>(shared.apply_scan(scan))
        });
        let scanned = scanning
            .await
            .map_err(|error| no_answer(error.to_string()))?;
        let state_dir = self.shared.state_dir.path().display();
        scanned.map_err(|error| no_answer(format!("cannot read {state_dir}: {error}")))
    }

    /// Discards directories of finished jobs, starts due deliveries of results, and probes an idle
    /// machine again.
    async fn run_upkeep(&self) {
        let shared = self.shared.clone();
        let upkeep = tokio::task::spawn_blocking(move || shared.run_upkeep());
        if let Err(error) = upkeep.await {
            tracing::warn!(%error, "the upkeep of job directories failed; the next listing retries");
        }
    }

    async fn submit(&self, requests: Vec<SubmitRequest>) -> Vec<Result<JobId, SchedulerError>> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.shared.start(request).await);
        }
        answers
    }

    async fn cancel(&self, jobs: &[JobId], mode: StopMode) -> Vec<Result<(), SchedulerError>> {
        jobs.iter().map(|job| self.signal(job, mode)).collect()
    }

    async fn job_exit(&self, container: &ContainerUuid, _: &TokenUuid) -> JobExit {
        let dir = self.shared.job_dir(container);
        let exit = match dir.status() {
            Ok(JobStatus::Ended(exit)) => exit,
            Ok(JobStatus::Alive(_)) => return JobExit::uncertain(Uncertainty::StillRunning),
            Err(error) => return JobExit::uncertain(Uncertainty::MayBeRunning(error.to_string())),
        };
        let reason = describe_exit(exit, dir.path());
        let undelivered = self.shared.redeliveries.is_deliverable(&dir, exit);
        let tail = dir.output_tail();
        JobExit {
            without_trace: exit == CrunchRunExit::NeverStarted && tail.is_empty(),
            reason,
            detail: tail.text,
            status_line: tail.status_line,
            never_started: exit == CrunchRunExit::NeverStarted,
            undelivered,
            cause: cause_of(exit),
            log_dir: Some(dir.path().join(LOG_DIR)),
            ..JobExit::default()
        }
    }

    fn state_dir(&self) -> Option<&Path> {
        Some(self.shared.state_dir.path())
    }

    async fn cleanup(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        let dir = self.shared.job_dir(container);
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        loop {
            if !matches!(dir.status(), Ok(JobStatus::Alive(_))) {
                self.shared.redeliveries.forget(container);
                match self.shared.discard_job_dir(&dir).await {
                    // Another process, such as `crunch-run resume`, has just begun to work there.
                    Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                    Err(error) => {
                        tracing::warn!(%container, %error, "could not remove the directory of the job");
                        return Ok(());
                    }
                    Ok(()) => return Ok(()),
                }
            }
            if Instant::now() > deadline {
                return Err(StillInUse);
            }
            tokio::time::sleep(CLEANUP_POLL_INTERVAL).await;
        }
    }

    async fn job_exited(&self) {
        self.shared.worker_exited.notified().await;
    }
}

fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail,
    }
}

impl Local {
    /// Signals the crunch-run of a job.
    fn signal(&self, job: &JobId, mode: StopMode) -> Result<(), SchedulerError> {
        let signal = match mode {
            StopMode::Graceful => Signal::TERM,
            // The container cannot outlive its crunch-run: the shim of its processes ends with it.
            StopMode::Force => Signal::KILL,
        };
        let worker = {
            let state = self.shared.state.lock();
            let of_job = |worker: &&Arc<CrunchRunProcess>| worker.pid().to_string() == job.0;
            let mut workers = state.jobs.values().filter_map(|j| j.worker.as_ref());
            workers.find(of_job).cloned()
        };
        let id = &job.0;
        match worker {
            Some(worker) => worker
                .signal(signal)
                .map_err(|error| no_answer(format!("cannot signal process {id}: {error}"))),
            None => Err(no_answer(format!("job {id} has no known process"))),
        }
    }
}

/// Fails if the container names a partition: this machine is in none.
fn no_partition(needs: &ResourceRequest) -> Result<(), String> {
    match needs.partitions.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "it may run in partition {} only, and a machine of its own is in no partition",
            needs.partitions.join(", ")
        )),
    }
}

/// Maximum number of users in a message.
const MAX_NAMES: usize = 5;

/// These users as people know them, in brackets; nothing if there are none.
fn name_users(uids: &BTreeSet<u32>) -> String {
    if uids.is_empty() {
        return String::new();
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = |uid: &u32| {
        let named = users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == uid.to_string()).then(|| format!("of user {name}"))
        });
        named.unwrap_or_else(|| format!("of user id {uid}"))
    };
    let names: Vec<String> = uids.iter().take(MAX_NAMES).map(name).collect();
    format!(" ({})", names.join(", "))
}

/// Adds to why a container waits that other dispatchers' jobs hold a part of the machine.
fn name_others(
    answer: Admission,
    holders: &str,
    elsewhere: ResourceVector,
    is_their_turn: bool,
) -> Admission {
    let verb = match is_their_turn {
        true => "hold or have waited longer for",
        false => "hold",
    };
    match answer {
        Admission::Later(why) if elsewhere != ResourceVector::default() => {
            let held: Vec<String> = ResourceKind::ALL
                .into_iter()
                .map(|kind| (kind, elsewhere.get(kind)))
                .filter(|(_, amount)| *amount > 0)
                .map(|(kind, amount)| kind.describe(amount))
                .collect();
            Admission::Later(format!(
                "{why}; jobs of others on this machine {verb} {}{holders}",
                held.join(" and ")
            ))
        }
        answer => answer,
    }
}

fn to_amount(resources: ResourceVector) -> Resources {
    Resources {
        cpus: resources.get(ResourceKind::Cpus) as u32,
        ram: resources.get(ResourceKind::Ram),
        scratch: resources.get(ResourceKind::Scratch),
        gpus: (resources.get(ResourceKind::Cuda) + resources.get(ResourceKind::Rocm)) as u32,
    }
}

fn cause_of(exit: CrunchRunExit) -> ExitCause {
    match exit {
        CrunchRunExit::Code(code) => ExitCause::of_status(code.into()),
        CrunchRunExit::MachineRestarted => ExitCause::Evicted(Eviction::NodeLost),
        CrunchRunExit::Killed | CrunchRunExit::NeverStarted => ExitCause::Unknown,
    }
}

fn describe_exit(exit: CrunchRunExit, dir: &Path) -> String {
    match exit {
        CrunchRunExit::Code(code) if exit.is(ExitCode::Undelivered) => format!(
            "{}: see its log in {} or in undelivered/ beside it",
            crunch_contract::describe(code.into()),
            dir.display()
        ),
        CrunchRunExit::Code(code) => {
            let meaning = crunch_contract::describe(code.into());
            format!("{meaning} (exit code {code})")
        }
        CrunchRunExit::Killed => {
            "crunch-run was killed before it could record a final state".into()
        }
        CrunchRunExit::MachineRestarted => {
            "this machine was restarted while the container was running".into()
        }
        CrunchRunExit::NeverStarted => "crunch-run did not start".into(),
    }
}

#[cfg(test)]
mod tests;

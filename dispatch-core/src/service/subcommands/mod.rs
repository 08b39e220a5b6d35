//! The subcommands of a dispatcher for users: show a submission, explain a container, check the
//! set-up. Each prints text or JSON.

pub mod check;
pub mod container_ref;
pub mod dry_run;
pub mod explain;
mod explain_input;
mod queries;

use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use arvados_client::records::{Container, ContainerState};
use arvados_client::visible::{visible, visible_json};
use arvados_client::{Client, ContainerUuid};
use clap::Args;
use preflight::{Report, one_line};
use serde::Serialize;

use crate::model::owner::KnownOwner;
use crate::model::resources::{Admission, ResourceRequest};
use crate::model::world::{Job, JobId};
use crate::observe::owners::owner_of;
use crate::scheduler::{Candidate, Scheduler};
use crate::service;
use crate::service::state_dir::StateDir;
use crate::service::subcommands::check::probe_job::ProbeOptions;
use crate::service::subcommands::container_ref::{ContainerRef, ContainerRefError};
use crate::service::subcommands::explain::{SchedulerTerms, explain};

use queries::{host_fault, list_jobs, no_reply_text, with_timeout};

/// Flags of programs with subcommands.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Flags {
    /// Show how a container, or the container of a request, would be submitted, and the source of
    /// each value. Submits nothing
    #[arg(long, value_name = "UUID|JOB", value_parser = ContainerRef::parse)]
    pub dry_run: Option<ContainerRef>,
    /// Print JSON instead of text, with --dry-run, explain and check
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,
}

/// A command instead of dispatching. It needs the flags of the service before it, and its user.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Subcommand {
    /// What `--dry-run` does.
    #[command(skip)]
    DryRun {
        /// For this one.
        container: ContainerRef,
    },
    /// Show why a container runs, or why it does not
    Explain {
        /// UUID of the container or of its request, or number of its job
        #[arg(value_name = "UUID|JOB", value_parser = ContainerRef::parse)]
        container: ContainerRef,
    },
    /// Check the setup and show how to fix what fails; exits with 78 if something fails
    Check {
        /// Also submit a test job, show what crunch-run finds on its node, and remove the job
        #[arg(long)]
        submit_test: bool,
        /// Timeout until the test job starts
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration)]
        timeout: Duration,
        /// Node of the test job, by its name in the scheduler [default: any]
        #[arg(long, value_name = "NAME", requires = "submit_test")]
        node: Option<String>,
        /// Partition of the test job [default: that of a container that names none]
        #[arg(long, value_name = "NAME", requires = "submit_test")]
        partition: Option<String>,
        /// GPUs that the test job asks for, to see that its node grants them
        #[arg(long, value_name = "N", requires = "submit_test", default_value_t = 0)]
        gpus: u32,
    },
}

impl Flags {
    /// The subcommand to run instead of dispatching.
    pub fn subcommand(&self) -> Option<Subcommand> {
        let dry_run = self.dry_run.clone();
        let dry_run = dry_run.map(|container| Subcommand::DryRun { container });
        dry_run.or_else(|| self.subcommand.clone())
    }

    /// Whether the subcommand works without the owner map, which may be wrong.
    pub fn works_without_owner_map(&self) -> bool {
        use Subcommand::{Check, Explain};
        matches!(self.subcommand, Some(Explain { .. } | Check { .. }))
    }
}

/// A result that can be printed as text.
pub trait Render: Serialize {
    /// The result as lines, each with its line end.
    fn text(&self) -> String;
}

impl Render for Report {
    fn text(&self) -> String {
        self.text()
    }
}

/// The submission of a container, and why it would not be submitted now.
#[derive(Debug, Serialize)]
struct DryRun<P> {
    #[serde(flatten)]
    page: P,
    /// The reason. `None` means that no obstacle is known; other containers may still come first.
    not_now: Option<String>,
}

impl<P: Render> Render for DryRun<P> {
    fn text(&self) -> String {
        let why = self.not_now.iter();
        let why: String = why
            .map(|why| format!("# at the moment it is not submitted: {why}\n"))
            .collect();
        why + &self.page.text()
    }
}

/// The parts of a program that subcommands need. Its settings are already checked.
pub trait DispatcherCommands {
    /// Type of the program's scheduler.
    type Scheduler: Scheduler;

    /// Names of the dispatcher and its scheduler.
    const TERMS: SchedulerTerms;

    /// Flags common to every dispatcher.
    fn common(&self) -> &service::Flags;

    /// State directory of the dispatcher.
    fn state_dir(&self) -> &Path;

    /// The values that the scheduler would get for this record.
    fn dry_run(
        &self,
        container: &Container,
        owner: KnownOwner,
        home: StateDir,
    ) -> impl Future<Output = Result<impl Render, Box<dyn Error>>>;

    /// The container of a job that is not listed any more, if the scheduler still knows it.
    fn container_of_past_job(&self, _job: &JobId) -> impl Future<Output = Option<ContainerUuid>> {
        std::future::ready(None)
    }

    /// The scheduler, used only for queries.
    fn scheduler(&self, home: StateDir, label: String) -> Self::Scheduler;

    /// The scheduler's own analysis of a job, if it has such a query.
    fn analysis(&self, _job: &JobId) -> impl Future<Output = Option<String>> {
        std::future::ready(None)
    }

    /// The reason for which the scheduler would refuse a job with these needs, if it can be asked.
    fn refusal(
        &self,
        _scheduler: &Self::Scheduler,
        _needs: &ResourceRequest,
    ) -> impl Future<Output = Option<String>> {
        std::future::ready(None)
    }

    /// Runs all checks. With `test`, also runs a probe job.
    fn check(&self, test: Option<ProbeOptions>) -> impl Future<Output = Report>;
}

/// Runs the subcommand and prints its result. The exit status is 78 if a check failed or the
/// subcommand could not run.
pub fn run<P: DispatcherCommands, E: std::fmt::Display>(
    subcommand: &Subcommand,
    as_json: bool,
    program: Result<P, E>,
) -> ExitCode {
    let program = match program {
        Ok(program) => program,
        Err(error) => return service::exit_config_error(&error.to_string()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answer = match runtime {
        Ok(runtime) => {
            let answer = runtime.block_on(answer(&program, subcommand, as_json));
            // A file server that does not answer keeps no subcommand from ending.
            runtime.shutdown_background();
            answer
        }
        Err(error) => Err(error.into()),
    };
    match answer {
        Ok((page, true)) => {
            print!("{page}");
            ExitCode::SUCCESS
        }
        Ok((page, false)) => {
            print!("{page}");
            service::exit_config_error("the check found a failure")
        }
        Err(error) => service::exit_config_error(&visible(&error.to_string())),
    }
}

/// Time limit of `explain`. Each query to the scheduler has a shorter one of its own.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(30);

async fn answer<P: DispatcherCommands>(
    program: &P,
    subcommand: &Subcommand,
    as_json: bool,
) -> Result<(String, bool), Box<dyn Error>> {
    Ok(match subcommand {
        Subcommand::DryRun { container } => {
            let client = client(program)?;
            let home = StateDir::open_shared(program.state_dir())?;
            let label = home.instance_id_or_placeholder();
            let scheduler = program.scheduler(home, label);
            let record = fetch(program, &client, &scheduler, container).await?;
            let owner = owner_of(&client, &record).await?;
            let home = StateDir::open_shared(program.state_dir())?;
            let page = program.dry_run(&record, owner.clone(), home).await?;
            let page = DryRun {
                // The page is also valid input of the scheduler's command, so the reason is a
                // comment of one line.
                not_now: submit_blocker(program, &client, &scheduler, (&record, owner))
                    .await?
                    .map(|why| one_line(&why)),
                page,
            };
            (render(&page, as_json)?, true)
        }
        Subcommand::Explain { container } => {
            let asked = explain_input::explain_input(program, container);
            let input = tokio::time::timeout(EXPLAIN_TIMEOUT, asked).await;
            let input = input.map_err(|_| {
                let seconds = EXPLAIN_TIMEOUT.as_secs();
                format!("there is no answer after {seconds} s; `check` says what does not answer")
            })?;
            (render(&explain(&input?), as_json)?, true)
        }
        Subcommand::Check {
            submit_test,
            timeout,
            node,
            partition,
            gpus,
        } => {
            let test = submit_test.then(|| ProbeOptions {
                start_timeout: *timeout,
                node: node.clone(),
                partition: partition.clone(),
                gpus: *gpus,
            });
            let report = program.check(test).await;
            (render(&report, as_json)?, report.ok)
        }
    })
}

fn render(page: &impl Render, as_json: bool) -> serde_json::Result<String> {
    match as_json {
        false => Ok(visible(&page.text())),
        true => serde_json::to_string(page).map(|text| visible_json(&text) + "\n"),
    }
}

fn client<P: DispatcherCommands>(program: &P) -> Result<Client, Box<dyn Error>> {
    Ok(Client::new(service::endpoint(program.common())?)?)
}

/// The record of a container, however it is named.
async fn fetch<P: DispatcherCommands>(
    program: &P,
    client: &Client,
    scheduler: &P::Scheduler,
    asked: &ContainerRef,
) -> Result<Container, ContainerRefError> {
    let container_of = async |job: &JobId| {
        let no_answer = || no_reply_text(P::TERMS.scheduler);
        let listed = list_jobs(scheduler).await.ok_or_else(no_answer)?;
        let listed = listed.map_err(|error| error.to_string())?;
        let listed = listed.into_iter().find(|listed| listed.id == *job);
        match listed {
            Some(job) => Ok(Some(job.container)),
            None => with_timeout(program.container_of_past_job(job))
                .await
                .ok_or_else(no_answer),
        }
    };
    asked.fetch(client, container_of).await
}

/// Whether a Queued container could start, according to the scheduler. The scheduler has just
/// answered the query for its jobs, or failed to.
async fn fit<P: DispatcherCommands>(
    program: &P,
    scheduler: &P::Scheduler,
    container: &Container,
    owner: KnownOwner,
) -> Admission {
    let reserve = program.common().reserve_extra_ram;
    let needs = ResourceRequest::of(container).with_reserved_ram(reserve);
    let candidate = Candidate {
        container: container.uuid.clone(),
        needs: ResourceRequest {
            charged_to: scheduler.charge(&owner).map(std::sync::Arc::new),
            ..needs
        },
        // The test of its job follows.
        was_locked: false,
        // Only the service knows them.
        runners: Vec::new(),
    };
    if let Some(rejections) = scheduler.rejections() {
        rejections.forget_earlier_jobs();
    }
    let mut fits = scheduler.admit(std::slice::from_ref(&candidate), &[]);
    let refusal = with_timeout(program.refusal(scheduler, &candidate.needs)).await;
    let refusal = refusal.unwrap_or_else(|| Some(no_reply_text(P::TERMS.scheduler)));
    match (fits.pop().unwrap_or(Admission::Now), refusal) {
        (Admission::Now | Admission::Later(_), Some(words)) => {
            let name = P::TERMS.scheduler;
            Admission::Later(format!("{name} would reject its job: {words}"))
        }
        (fit, _) => fit,
    }
}

/// The reason for which the record keeps a container from being started.
fn not_wanted(container: &Container) -> Option<String> {
    match (&container.state, container.priority) {
        (ContainerState::Queued, 1..) => None,
        (ContainerState::Queued, _) => Some("its priority is 0".to_owned()),
        (state, _) => Some(format!("it is {state}")),
    }
}

/// The reason for which a container would not be submitted now.
async fn submit_blocker<P: DispatcherCommands>(
    program: &P,
    client: &Client,
    scheduler: &P::Scheduler,
    (container, owner): (&Container, KnownOwner),
) -> Result<Option<String>, Box<dyn Error>> {
    if let Some(why) = not_wanted(container) {
        return Ok(Some(why));
    }
    if let Some(fault) = host_fault(scheduler).await {
        return Ok(Some(fault));
    }
    let jobs = match list_jobs(scheduler).await {
        Some(Ok(jobs)) => jobs,
        Some(Err(error)) => return Ok(Some(error.to_string())),
        None => return Ok(Some(no_reply_text(P::TERMS.scheduler))),
    };
    // The record is read after the listing, as the service does.
    let container = client.container(&container.uuid).await?;
    if let Some(why) = not_wanted(&container) {
        return Ok(Some(why));
    }
    let left = |job: &&Job| job.container == container.uuid && !job.ended;
    if let Some(job) = jobs.iter().find(left) {
        let job = &job.id.0;
        return Ok(Some(format!(
            "job {job} of an earlier attempt still exists"
        )));
    }
    Ok(match fit(program, scheduler, &container, owner).await {
        Admission::Now => None,
        Admission::Later(why) | Admission::Never(why) | Admission::Impossible(why) => Some(why),
    })
}

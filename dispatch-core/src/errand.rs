//! What a dispatcher's program does beside its service, for people: show a submission, explain a container, check the
//! set-up.

use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use arvados_client::records::{Container, ContainerState};
use arvados_client::{Client, ContainerUuid, scopes};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use tokio::join;

use crate::api::Api;
use crate::asked::Asked;
use crate::check::Report;
use crate::check::submit_test::Test;
use crate::explain::{Explanation, Facts, Names, explain};
use crate::home::Home;
use crate::lines::one_line;
use crate::needs::{Fit, Needs};
use crate::program::{self, TokenModeName};
use crate::records::EVENT_TYPE;
use crate::scheduler::{Candidate, Scheduler};
use crate::world::{Job, JobId};

/// Timeout of one question to the scheduler: a person waits for the answer.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);
/// So many of a dispatcher's last words are shown: what came of a refusal comes after its reason, and the time of the
/// next attempt after that.
const LAST_WORDS: u64 = 4;

/// Flags of programs that do errands.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Flags {
    /// Only show what the scheduler would be told for this container, or that of this request, and where each value comes
    /// from
    #[arg(long, value_name = "UUID", value_parser = Asked::parse)]
    pub dry_run: Option<Asked>,
    /// How --dry-run, explain and check answer
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    pub format: Format,
    #[command(subcommand)]
    pub errand: Option<Errand>,
}

/// How an errand answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// What is done instead of dispatching; with the service's flags before it, and as its user.
#[derive(Debug, Clone, Subcommand)]
pub enum Errand {
    /// What `--dry-run` does.
    #[command(skip)]
    DryRun {
        /// For this one.
        container: Asked,
    },
    /// Tell why a container runs, or does not
    Explain {
        /// Which: its own name, or that of its request
        #[arg(value_name = "UUID", value_parser = Asked::parse)]
        container: Asked,
    },
    /// Look whether everything needed is there, and what to do about what is not; exit status 78 if something fails
    Check {
        /// Also submit a job, tell what crunch-run finds on its node, and remove it
        #[arg(long)]
        submit_test: bool,
        /// How long that job may take to start
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = program::time)]
        wait: Duration,
        /// The node for it, by its name in the scheduler [default: any]
        #[arg(long, value_name = "NAME", requires = "submit_test")]
        node: Option<String>,
    },
}

impl Flags {
    /// What to do instead of dispatching.
    pub fn errand(&self) -> Option<Errand> {
        let dry_run = self.dry_run.clone();
        let dry_run = dry_run.map(|container| Errand::DryRun { container });
        dry_run.or_else(|| self.errand.clone())
    }
}

/// An answer for people.
pub trait Page: Serialize {
    /// Lines that end.
    fn text(&self) -> String;
}

impl Page for Report {
    fn text(&self) -> String {
        self.text()
    }
}

impl Page for Explanation {
    fn text(&self) -> String {
        self.text()
    }
}

/// What the scheduler would be told, and whether it would be told that now.
#[derive(Debug, Serialize)]
struct DryRun<P> {
    #[serde(flatten)]
    page: P,
    /// Why not; none: nothing is known that keeps it, but others may come first.
    not_now: Option<String>,
}

impl<P: Page> Page for DryRun<P> {
    fn text(&self) -> String {
        let why = self.not_now.iter();
        let why: String = why
            .map(|why| format!("# as things are it is not submitted: {why}\n"))
            .collect();
        why + &self.page.text()
    }
}

/// What errands need of a program: its settings, checked.
pub trait Program {
    /// Its scheduler.
    type Scheduler: Scheduler;

    /// How things are called there.
    const NAMES: Names;

    /// What every dispatcher is told.
    fn common(&self) -> &program::Flags;

    /// The directory of its jobs.
    fn directory(&self) -> &Path;

    /// What the scheduler would be told for this record.
    fn dry_run(
        &self,
        container: &Container,
        home: Home,
    ) -> impl Future<Output = Result<impl Page, Box<dyn Error>>>;

    /// The scheduler, to ask it.
    fn scheduler(&self, home: Home, label: String) -> Self::Scheduler;

    /// What the scheduler itself has to say about a job, where it is asked for that.
    fn analysis(&self, _job: &JobId) -> impl Future<Output = Option<String>> {
        std::future::ready(None)
    }

    /// Why the scheduler would not take the job of a container that needs this, where it can be asked.
    fn refusal(&self, _needs: &Needs) -> impl Future<Output = Option<String>> {
        std::future::ready(None)
    }

    /// Looks at everything; with `test` also at a job of its own.
    fn check(&self, test: Option<Test>) -> impl Future<Output = Report>;
}

/// Does it, and prints the answer. 78: the check found something that fails, or this could not be done.
pub fn run<P: Program, E: std::fmt::Display>(
    errand: &Errand,
    format: Format,
    program: Result<P, E>,
) -> ExitCode {
    let program = match program {
        Ok(program) => program,
        Err(error) => return program::refuse(&error.to_string()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answer = match runtime {
        Ok(runtime) => runtime.block_on(answer(&program, errand, format)),
        Err(error) => Err(error.into()),
    };
    match answer {
        Ok((page, true)) => {
            print!("{page}");
            ExitCode::SUCCESS
        }
        Ok((page, false)) => {
            print!("{page}");
            program::refuse("the check found something that fails")
        }
        Err(error) => program::refuse(&error.to_string()),
    }
}

async fn answer<P: Program>(
    program: &P,
    errand: &Errand,
    format: Format,
) -> Result<(String, bool), Box<dyn Error>> {
    Ok(match errand {
        Errand::DryRun { container } => {
            let client = client(program)?;
            let record = container.record(&client).await?;
            let home = Home::visit(program.directory())?;
            let page = program.dry_run(&record, home).await?;
            let home = Home::visit(program.directory())?;
            let label = home.shown_label();
            let scheduler = program.scheduler(home, label);
            let page = DryRun {
                // In a page that the scheduler's command reads too, it is a comment of one line.
                not_now: not_now(program, &client, &scheduler, &record)
                    .await?
                    .map(|why| one_line(&why)),
                page,
            };
            (shown(&page, format)?, true)
        }
        Errand::Explain { container } => {
            let told = explain(&facts(program, container).await?);
            (shown(&told, format)?, true)
        }
        Errand::Check {
            submit_test,
            wait,
            node,
        } => {
            let test = submit_test.then(|| Test {
                patience: *wait,
                node: node.clone(),
            });
            let report = program.check(test).await;
            (shown(&report, format)?, report.ok)
        }
    })
}

fn shown(page: &impl Page, format: Format) -> serde_json::Result<String> {
    match format {
        Format::Text => Ok(page.text()),
        Format::Json => serde_json::to_string(page).map(|text| text + "\n"),
    }
}

fn client<P: Program>(program: &P) -> Result<Client, Box<dyn Error>> {
    Ok(Client::new(program::endpoint(program.common())?)?)
}

async fn facts<P: Program>(program: &P, asked: &Asked) -> Result<Facts, Box<dyn Error>> {
    let common = program.common();
    let client = client(program)?;
    let uuid = &asked.record(&client).await?.uuid;
    let home = Home::visit(program.directory())?;
    let label = home.shown_label();
    let scheduler = program.scheduler(home, label.clone());
    let (jobs, tokens, last_words) = join!(
        in_time(scheduler.list()),
        client.tokens(),
        last_words(&client, uuid)
    );
    let jobs = match jobs {
        Some(jobs) => jobs.map_err(|error| error.to_string()),
        None => Err(silent(P::NAMES.scheduler)),
    };
    let jobs = jobs.map(|mut jobs| {
        jobs.retain(|job| job.container == *uuid);
        jobs
    });
    let tokens = tokens?;
    // Younger than the listing, as the service has it.
    let container = client.container(uuid).await?;
    let holder = container.locked_by_uuid.clone();
    let own = match common.token_mode {
        TokenModeName::Shared => Some(client.own_token().await?.uuid),
        TokenModeName::PerAttempt => None,
    };
    let minter = format!("{}-{label}", scheduler.name());
    let ours = holder.filter(|holder| {
        let attempt = tokens.iter().find(|token| token.uuid == *holder);
        own.as_ref() == Some(holder)
            || attempt.is_some_and(|token| scopes::is_labelled(&token.scopes, &minter))
    });
    let ended = async {
        match (&ours, &jobs) {
            (Some(attempt), Ok(jobs)) if jobs.is_empty() => {
                let ending = in_time(scheduler.ending(uuid, attempt)).await;
                let reason = ending.map_or(silent(P::NAMES.scheduler), |ending| ending.reason);
                Some(reason).filter(|reason| !reason.is_empty())
            }
            _ => None,
        }
    };
    let job = jobs.iter().flatten().find(|job: &&Job| !job.ended);
    let analysis = async {
        match job {
            // Of one that runs it would tell why it could run nowhere else.
            Some(job) if container.state != ContainerState::Running => {
                let analysis = in_time(program.analysis(&job.id)).await;
                analysis.unwrap_or_else(|| Some(silent(P::NAMES.scheduler)))
            }
            _ => None,
        }
    };
    let fit = async {
        match container.state {
            // A scheduler that has just not answered is not asked again.
            ContainerState::Queued if jobs.is_ok() => fit(program, &scheduler, &container).await,
            _ => Fit::Now,
        }
    };
    let (ended, analysis, fit) = join!(ended, analysis, fit);
    let waiting = scheduler.waiting().remove(uuid);
    Ok(Facts {
        last_words,
        names: P::NAMES,
        container,
        held_by_us: ours.is_some(),
        jobs,
        waiting,
        ended,
        fit,
        analysis,
    })
}

/// The answer to one question, unless it takes too long.
async fn in_time<T>(asked: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(QUESTION_TIMEOUT, asked).await.ok()
}

/// What is said of a scheduler that does not answer a question in time.
fn silent(scheduler: &str) -> String {
    let seconds = QUESTION_TIMEOUT.as_secs();
    format!("{scheduler} did not answer within {seconds} s")
}

/// Whether a container that is Queued could start, as far as a scheduler says that has listed its jobs, or failed to.
async fn fit<P: Program>(program: &P, scheduler: &P::Scheduler, container: &Container) -> Fit {
    let candidate = Candidate {
        container: container.uuid.clone(),
        needs: Needs::of(container).and_ram(program.common().reserve_extra_ram),
    };
    let mut fits = scheduler.admit(std::slice::from_ref(&candidate), &[]);
    let refusal = in_time(program.refusal(&candidate.needs)).await;
    let refusal = refusal.unwrap_or_else(|| Some(silent(P::NAMES.scheduler)));
    match (fits.pop().unwrap_or(Fit::Now), refusal) {
        (Fit::Now | Fit::Later(_), Some(words)) => {
            let name = P::NAMES.scheduler;
            Fit::Later(format!("{name} would not take its job: {words}"))
        }
        (fit, _) => fit,
    }
}

/// Why a container is none to be started, by its record.
fn not_wanted(container: &Container) -> Option<String> {
    match (&container.state, container.priority) {
        (ContainerState::Queued, 1..) => None,
        (ContainerState::Queued, _) => Some("its priority is 0".to_owned()),
        (state, _) => Some(format!("it is {state}")),
    }
}

/// Why a container would not be submitted as things are, if so.
async fn not_now<P: Program>(
    program: &P,
    client: &Client,
    scheduler: &P::Scheduler,
    container: &Container,
) -> Result<Option<String>, Box<dyn Error>> {
    if let Some(why) = not_wanted(container) {
        return Ok(Some(why));
    }
    let jobs = match in_time(scheduler.list()).await {
        Some(Ok(jobs)) => jobs,
        Some(Err(error)) => return Ok(Some(error.to_string())),
        None => return Ok(Some(silent(P::NAMES.scheduler))),
    };
    // Younger than the listing, as the service has it.
    let container = client.container(&container.uuid).await?;
    if let Some(why) = not_wanted(&container) {
        return Ok(Some(why));
    }
    let left = |job: &&Job| job.container == container.uuid && !job.ended;
    if let Some(job) = jobs.iter().find(left) {
        let job = &job.id.0;
        return Ok(Some(format!(
            "job {job} is left over from an earlier attempt"
        )));
    }
    Ok(match fit(program, scheduler, &container).await {
        Fit::Now => None,
        Fit::Later(why) | Fit::Never(why) => Some(why),
    })
}

/// What the server's `logs` have last of a dispatcher about it, the newest first: when, and its words.
async fn last_words(client: &Client, uuid: &ContainerUuid) -> Vec<String> {
    match client.last_notes(uuid, EVENT_TYPE, LAST_WORDS).await {
        Ok(notes) => {
            let notes = notes.into_iter();
            notes
                .map(|(time, words)| format!("{}, {words}", time.strftime("%Y-%m-%d %H:%M:%S UTC")))
                .collect()
        }
        Err(error) => vec![format!("not known: {error}")],
    }
}

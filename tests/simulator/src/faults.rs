//! The faults of a seed: which kinds happen, and how often. Drawn once; none is left at the end of
//! the fault phase.

use std::time::Duration;

use fastrand::Rng;

/// A bug built into the dispatcher's environment, to check that the simulator reports a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SeededBug {
    /// A listing that failed is read as an empty one.
    Listing,
    /// A submission whose answer was lost is repeated.
    Resubmit,
    /// A container is unlocked with the dispatch token instead of the attempt's.
    Unlock,
    /// A job that was cancelled is cancelled again.
    Stop,
    /// A token of an earlier attempt is not revoked before the container is locked again.
    OrphanToken,
    /// The scheduler shows another attempt for each job than the one that it runs.
    Holder,
}

/// Probability of each fault for one call, where no other unit is given.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The API refuses before anything happens: 429, 500, 503.
    pub refused: f64,
    /// The call takes effect and its answer is lost.
    pub lost: f64,
    /// The answer is lost and the call takes effect up to [`MAX_CALL_DELAY`] later.
    pub late: f64,
    /// The call takes up to half a minute.
    pub slow: f64,
    /// A page is short, or has a row twice.
    pub odd_page: f64,
    /// The scheduler's listing fails.
    pub list_fails: f64,
    /// The listing is empty although there are jobs; never twice in a row.
    pub list_empty: f64,
    /// The scheduler clearly refuses a job.
    pub submit_refused: f64,
    /// The scheduler accepts the job and answers unclearly.
    pub submit_accepted_unclear: f64,
    /// The scheduler does not accept the job and answers unclearly.
    pub submit_rejected_unclear: f64,
    /// The scheduler answers unclearly and accepts the job up to a minute later.
    pub submit_late: f64,
    /// The scheduler refuses a batch as a whole.
    pub batch_refused: f64,
    /// A cancellation fails.
    pub stop_fails: f64,
    /// The query of a job's exit fails.
    pub exit_unknown: f64,
    /// Executors that end before they start their container.
    pub executor_dies_early: f64,
    /// Executors killed per minute. In half of the cases only the scheduler reports them as dead.
    pub kills: f64,
    /// Dispatchers killed per minute.
    pub restarts: f64,
    /// User actions per minute.
    pub user_actions: f64,
    /// Faults of a dispatcher's host per minute, such as a full disk.
    pub host_faults: f64,
    /// Faults of the file storage per minute.
    pub storage_faults: f64,
    /// Outages of the API per minute.
    pub outages: f64,
    /// Times per minute that the API starts to refuse valid tokens, as after a restart of its
    /// database.
    pub refusals: f64,
    /// A bulk call is refused although the server announced it, as after a downgrade.
    pub no_bulk: f64,
    /// A dispatcher that is killed starts again with the dispatch token of another user. The server
    /// shows it no token of the former one.
    pub other_user: f64,
    /// The server ignores the filters of lists of tokens, and shows those of other users too.
    pub lists_all_tokens: bool,
    /// Each page of a list of tokens is the first one again.
    pub first_page_again: bool,
}

/// Maximum delay until the server has carried out or dropped a request.
pub const MAX_CALL_DELAY: Duration = Duration::from_secs(110);

impl Faults {
    /// Draws the probabilities. Each kind is absent from about half of the seeds, so that no kind
    /// hides another.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut probability = |most: f64| match rng.bool() {
            true => rng.f64() * rng.f64() * most,
            false => 0.0,
        };
        Self {
            refused: probability(0.3),
            lost: probability(0.2),
            late: probability(0.1),
            slow: probability(0.1),
            odd_page: probability(0.5),
            list_fails: probability(0.7),
            list_empty: probability(0.3),
            submit_refused: probability(0.5),
            submit_accepted_unclear: probability(0.5),
            submit_rejected_unclear: probability(0.5),
            submit_late: probability(0.3),
            batch_refused: probability(0.5),
            stop_fails: probability(0.5),
            exit_unknown: probability(0.7),
            executor_dies_early: probability(0.3),
            kills: probability(10.0),
            restarts: probability(1.0),
            user_actions: probability(30.0),
            host_faults: probability(0.5),
            storage_faults: probability(0.2),
            outages: probability(0.2),
            refusals: probability(0.5),
            no_bulk: probability(0.5),
            other_user: probability(0.5),
            lists_all_tokens: probability(1.0) > 0.3,
            first_page_again: probability(1.0) > 0.3,
        }
    }
}

//! What goes wrong, how often: drawn from the seed once, and gone when the storm is over.

use std::time::Duration;

use fastrand::Rng;

/// A rule of the dispatcher that is broken on purpose, to see that the simulator notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Broken {
    /// A listing that failed is read as an empty one.
    Listing,
    /// A submission whose answer was lost is made again.
    Resubmit,
    /// A container is unlocked with the dispatch token instead of the attempt's.
    Unlock,
    /// A job that was asked to end is asked again.
    Stop,
    /// A token of an earlier attempt is not ended before the container is locked again.
    LeftOver,
}

/// Probabilities of each fault for one call, unless said otherwise.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The API refuses before anything happens: 429, 500, 503.
    pub refused: f64,
    /// The call takes effect and its answer is lost.
    pub lost: f64,
    /// The answer is lost and the call takes effect up to [`LATEST`] later.
    pub late: f64,
    /// The call takes up to half a minute.
    pub slow: f64,
    /// A page comes short, or twice.
    pub odd_page: f64,
    /// The scheduler's listing fails.
    pub list_fails: f64,
    /// It is empty though there are jobs; never twice in a row.
    pub list_empty: f64,
    /// The scheduler refuses a job for certain.
    pub submit_refused: f64,
    /// It takes the job and says something unclear.
    pub submit_swallowed: f64,
    /// It does not take it and says something unclear.
    pub submit_lost: f64,
    /// It says something unclear and takes the job up to a minute later.
    pub submit_late: f64,
    /// It does not take a batch as such.
    pub not_together: f64,
    /// A stop is not taken.
    pub stop_fails: f64,
    /// It does not say whether, or how, a job ended.
    pub end_unknown: f64,
    /// Executors that die before they started their container.
    pub stillborn: f64,
    /// Executors killed a minute, each with the chance that its scheduler only believes so.
    pub kills: f64,
    /// Dispatchers killed a minute.
    pub restarts: f64,
    /// Changes of mind of users a minute.
    pub whims: f64,
    /// Times the API is away, a minute.
    pub outages: f64,
    /// Times the API refuses valid tokens for a while, as after a restart of its database, a minute.
    pub refusals: f64,
    /// A call for many is refused though the server announced it, as after its downgrade.
    pub no_bulk: f64,
}

/// The server drops a request it has not carried out by then.
pub const LATEST: Duration = Duration::from_secs(110);

impl Faults {
    /// What a seed has in store. Some seeds have no fault of some kinds, so that one kind is not hidden by another.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut upto = |most: f64| match rng.bool() {
            true => rng.f64() * rng.f64() * most,
            false => 0.0,
        };
        Self {
            refused: upto(0.3),
            lost: upto(0.2),
            late: upto(0.1),
            slow: upto(0.1),
            odd_page: upto(0.5),
            list_fails: upto(0.7),
            list_empty: upto(0.3),
            submit_refused: upto(0.5),
            submit_swallowed: upto(0.5),
            submit_lost: upto(0.5),
            submit_late: upto(0.3),
            not_together: upto(0.5),
            stop_fails: upto(0.5),
            end_unknown: upto(0.7),
            stillborn: upto(0.3),
            kills: upto(10.0),
            restarts: upto(1.0),
            whims: upto(30.0),
            outages: upto(0.2),
            refusals: upto(0.5),
            no_bulk: upto(0.5),
        }
    }
}

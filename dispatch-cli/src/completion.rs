//! Words that a shell offers for a job, an image or a collection.
//!
//! In: the server of the command line that is completed. Out: numbers, names and uuids. A server
//! that does not answer at once offers nothing, and says nothing: a person is typing.

use std::path::PathBuf;
use std::time::Duration;

use arvados_client::Client;
use arvados_client::filter::Query;
use arvados_client::records::Collection;
use clap::ValueEnum;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

use crate::collection;
use crate::error::CliError;
use crate::image::store;
use crate::job::JobState;
use crate::job_numbers;
use crate::jobs;
use crate::session::Session;
use crate::state_dir;
use arvados_client::visible::visible;

/// How long the server may take.
const MAX_TIME: Duration = Duration::from_secs(1);
/// Maximum number of jobs, and of collections, that are offered.
const MAX_OFFERED: u64 = 50;

/// A word, and what it stands for.
type Offer = (String, String);

/// Offers the numbers of the user's newest jobs.
pub fn job_numbers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| offer(newest_jobs))
}

/// Offers the states of jobs.
pub fn states() -> ArgValueCandidates {
    let state = |state: &JobState| CompletionCandidate::new(state.as_str());
    ArgValueCandidates::new(move || JobState::value_variants().iter().map(state).collect())
}

/// Offers the names of the images on the server.
pub fn image_names() -> ArgValueCandidates {
    ArgValueCandidates::new(|| offer(images))
}

/// Offers the uuids of the user's newest collections.
pub fn collection_uuids() -> ArgValueCandidates {
    ArgValueCandidates::new(|| offer(async |client| collections(client, false).await))
}

/// Offers the uuids of the user's newest collections in the trash.
pub fn trashed_collection_uuids() -> ArgValueCandidates {
    ArgValueCandidates::new(|| offer(async |client| collections(client, true).await))
}

async fn newest_jobs(client: &Client) -> Result<Vec<Offer>, CliError> {
    let user = client.current_user().await?.uuid.to_string();
    let query = job_numbers::submitted_by(Query::new(), &user);
    let (newest, _) = jobs::newest(client, query, MAX_OFFERED as usize, None).await?;
    let words = newest.iter().map(|job| {
        let name = &job.request.name;
        (job.name(), format!("{}, {name}", job.state().as_str()))
    });
    Ok(words.collect())
}

async fn images(client: &Client) -> Result<Vec<Offer>, CliError> {
    let images = store::list(client).await?;
    let own = images.into_iter().filter(|image| image.is_believed);
    let words = own.map(|image| {
        let tagged = format!("{}:{}", image.name, image.tag);
        let word = tagged.strip_suffix(":latest").unwrap_or(&tagged);
        (word.to_owned(), String::new())
    });
    Ok(words.collect())
}

async fn collections(client: &Client, trashed: bool) -> Result<Vec<Offer>, CliError> {
    let user = client.current_user().await?.uuid.to_string();
    let query = collection::newest_of(Some(&user), trashed).limit(MAX_OFFERED);
    let page = client.page::<Collection>("collections", &query).await?;
    let seen = page.items.into_iter();
    let seen = seen.filter(|found| !collection::is_original(&found.name));
    Ok(seen.map(|found| (found.uuid, found.name)).collect())
}

/// Asks the server for words, in the order in which they are offered.
fn offer(
    ask: impl AsyncFnOnce(&Client) -> Result<Vec<Offer>, CliError>,
) -> Vec<CompletionCandidate> {
    let candidate = |(position, (word, meaning)): (usize, Offer)| {
        CompletionCandidate::new(word)
            .help(Some(visible(&meaning).into()))
            .display_order(Some(position))
    };
    let words = in_time(ask).unwrap_or_default().into_iter();
    let harmless = words.filter(|(word, _)| is_harmless(word));
    harmless.enumerate().map(candidate).collect()
}

/// Whether no shell takes a part of the word for anything else: shells insert it as it is.
fn is_harmless(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/:@-".contains(c);
    !word.starts_with('-') && !word.is_empty() && word.chars().all(is_plain)
}

/// What the server answers at once.
fn in_time(ask: impl AsyncFnOnce(&Client) -> Result<Vec<Offer>, CliError>) -> Option<Vec<Offer>> {
    let session = Session::open(named_state_dir().as_deref()).ok()?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().ok()?;
    let asked = async { tokio::time::timeout(MAX_TIME, ask(&session.client)).await };
    runtime.block_on(asked).ok()?.ok()
}

/// The state directory on the line that is completed, else that of the environment.
fn named_state_dir() -> Option<PathBuf> {
    let mut words = std::env::args_os().skip_while(|word| word != "--state-dir");
    let on_line = words.nth(1).map(PathBuf::from);
    on_line.or_else(state_dir::named_in_environment)
}

#[cfg(test)]
mod tests {
    use super::is_harmless;

    #[test]
    fn words_that_a_shell_would_run_are_not_offered() {
        for word in [
            "12",
            "busybox:1.36",
            "host:5000/a/b_c@sha256",
            "local-4zz18-0",
        ] {
            assert!(is_harmless(word), "{word}");
        }
        for word in [
            "zzz$(touch${IFS}pwned):latest",
            "a;b",
            "a>b",
            "a b",
            "a\nb",
            "`a`",
            "a'",
            "-rf",
            "é",
            "*",
            "a\u{202e}b",
            "~root",
            "a!b",
            "{a,b}",
            "#a",
            "",
        ] {
            assert!(!is_harmless(word), "{word}");
        }
    }
}

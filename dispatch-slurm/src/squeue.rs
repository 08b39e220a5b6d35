//! Reading `squeue`: complete or an error. Formats and states: squeue(1), sections FORMAT and JOB STATE CODES.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::world::{Job, JobId};
use jiff::Timestamp;

use crate::nice::Standing;

/// Job id, state, comment, nodes, nice, priority, start, reason, name. No field has a width, so none is cut; the two
/// that may hold anything come last.
pub const LISTING: &str = "@%i|%T|%k|%N|%y|%Q|%S|%r|%j";
/// Times as Unix time: what Slurm writes otherwise is local, and does not say where.
pub const TIME_FORMAT: (&str, &str) = ("SLURM_TIME_FORMAT", "%s");

/// What a state means to a dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Waiting for its start.
    Pending,
    /// Started, or being put away.
    Active,
    /// It will never run again.
    Ended,
}

/// A line that is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("squeue wrote a line that cannot be read: {0:?}")]
pub struct Unreadable(String);

/// One of our jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its number; that of an array's element is `12_3`.
    pub id: String,
    /// What its state means.
    pub meaning: Meaning,
    /// Its state in Slurm's words.
    pub state: String,
    /// From its name.
    pub container: ContainerUuid,
    /// From its comment.
    pub attempt: Option<TokenUuid>,
    /// Where it runs.
    pub node: Option<String>,
    /// Its place in the queue.
    pub standing: Standing,
    /// When it started, or is expected to.
    pub start: Option<Timestamp>,
    /// Why it waits, in Slurm's words.
    pub reason: String,
}

impl Row {
    /// As the engine sees it.
    pub fn job(&self) -> Job {
        Job {
            id: JobId(self.id.clone()),
            container: self.container.clone(),
            attempt: self.attempt.clone(),
            ended: self.meaning == Meaning::Ended,
            node: self.node.clone(),
        }
    }
}

/// What a job's comment says: which attempt, and which dispatcher of this user submitted it.
pub fn comment(attempt: &TokenUuid, label: &str) -> String {
    format!("{attempt} {label}")
}

/// The same where it must be one word: `scontrol` keeps quotes in what it reads.
pub fn comment_without_space(attempt: &TokenUuid, label: &str) -> String {
    format!("{attempt},{label}")
}

/// What is remembered of our jobs, should somebody have changed what they are found by.
pub trait Memory {
    /// Whose an attempt is.
    fn container(&self, attempt: &TokenUuid) -> Option<ContainerUuid>;
    /// The attempt of this container whose job has this number.
    fn attempt(&self, container: &ContainerUuid, id: &str) -> Option<TokenUuid>;
}

/// All rows of the dispatcher `label` in a listing in the format [`LISTING`]. Other jobs, also those of another
/// dispatcher of the same user, are none of its business. A job that somebody renamed is of the container that `memory`
/// has for its attempt; one whose comment somebody changed is ours if its name and number are.
pub fn parse(listing: &str, label: &str, memory: &impl Memory) -> Result<Vec<Row>, Unreadable> {
    let listing = without_heading(listing);
    if listing.is_empty() {
        return Ok(Vec::new());
    }
    // A name that was cut would be nobody's, and a name may hold a line break.
    let cut = || Unreadable(listing.lines().last().unwrap_or_default().to_owned());
    let body = listing.strip_suffix('\n').ok_or_else(cut)?;
    let head = || Unreadable(body.lines().next().unwrap_or_default().to_owned());
    let body = body.strip_prefix('@').ok_or_else(head)?;
    let rows = body.split("\n@").map(|line| row(line, label, memory));
    rows.filter_map(Result::transpose).collect()
}

/// Asked for a cluster by name, Slurm's commands may begin with that name, whatever they are told of headers.
pub fn without_heading(answer: &str) -> &str {
    match answer.split_once('\n') {
        Some((first, rest)) if first.starts_with("CLUSTER: ") => rest,
        _ => answer,
    }
}

fn row(line: &str, label: &str, memory: &impl Memory) -> Result<Option<Row>, Unreadable> {
    let unreadable = || Unreadable(line.to_owned());
    let (id, rest) = line.split_once('|').ok_or_else(unreadable)?;
    let (state, rest) = rest.split_once('|').ok_or_else(unreadable)?;
    let (comment, rest) = rest.split_once('|').ok_or_else(unreadable)?;
    let damaged = [id, state, comment].iter().any(|f| f.contains('\u{fffd}'));
    if damaged || !id.starts_with(|c: char| c.is_ascii_digit()) || state.is_empty() {
        return Err(unreadable());
    }
    let (attempt, by) = comment.split_once([' ', ',']).unwrap_or_default();
    let name = line.rsplit('|').next().unwrap_or_default();
    let container = ContainerUuid::parse(name).ok();
    let remembered = |container: &ContainerUuid| memory.attempt(container, id);
    let recommented = (by != label).then(|| container.as_ref().and_then(remembered));
    if let Some(None) = recommented {
        // What looks like a foreign row with a row of ours behind its line break has lost the mark between them.
        let of = |before: char| line.contains(&format!("{before}{label}|"));
        let swallowed = of(' ') || of(',');
        return if swallowed {
            Err(unreadable())
        } else {
            Ok(None)
        };
    }
    let attempt = recommented
        .clone()
        .unwrap_or_else(|| TokenUuid::parse(attempt).ok());
    let container = container.or_else(|| memory.container(attempt.as_ref()?));
    let told = match (told(rest), recommented) {
        (Some(told), _) => told,
        // What somebody wrote into the comment may look like more fields.
        (None, Some(_)) => Told::default(),
        // Our own rows are never odd; one that is was damaged on its way.
        (None, None) => return Err(unreadable()),
    };
    Ok(Some(Row {
        id: id.to_owned(),
        meaning: meaning(state),
        state: state.to_owned(),
        container: container.ok_or_else(unreadable)?,
        attempt,
        node: told.node,
        standing: told.standing,
        start: told.start,
        reason: told.reason,
    }))
}

/// What a row tells beside whose it is. A priority of 0 is that of a job that is left alone.
#[derive(Default)]
struct Told {
    node: Option<String>,
    standing: Standing,
    start: Option<Timestamp>,
    reason: String,
}

fn told(rest: &str) -> Option<Told> {
    let fields: Vec<&str> = rest.splitn(5, '|').collect();
    let [nodes, nice, priority, start, last] = fields[..] else {
        return None;
    };
    let (reason, _) = last.rsplit_once('|')?;
    let start = start.parse().ok();
    Some(Told {
        node: Some(nodes.to_owned()).filter(|nodes| !nodes.is_empty()),
        standing: Standing {
            priority: priority.parse().ok()?,
            nice: nice.parse().ok()?,
        },
        start: start.and_then(|second| Timestamp::from_second(second).ok()),
        reason: reason.to_owned(),
    })
}

/// An unknown state is one that keeps us waiting.
pub fn meaning(state: &str) -> Meaning {
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
        | "RESV_DEL_HOLD" => Meaning::Pending,
        "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "NODE_FAIL"
        | "OUT_OF_MEMORY" | "PREEMPTED" | "REVOKED" | "TIMEOUT" => Meaning::Ended,
        _ => Meaning::Active,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "zzzzz-dz642-queuedcontainer";
    const ATTEMPT: &str = "zzzzz-gj3su-000000000000000";

    fn parse(listing: &str, label: &str) -> Result<Vec<Row>, Unreadable> {
        super::parse(listing, label, &())
    }

    impl Memory for () {
        fn container(&self, _: &TokenUuid) -> Option<ContainerUuid> {
            None
        }

        fn attempt(&self, _: &ContainerUuid, _: &str) -> Option<TokenUuid> {
            None
        }
    }

    struct Job12;

    impl Memory for Job12 {
        fn container(&self, attempt: &TokenUuid) -> Option<ContainerUuid> {
            (attempt.as_str() == ATTEMPT).then(|| ContainerUuid::parse(UUID).unwrap())
        }

        fn attempt(&self, container: &ContainerUuid, id: &str) -> Option<TokenUuid> {
            let its = container.as_str() == UUID && id == "12";
            its.then(|| TokenUuid::parse(ATTEMPT).unwrap())
        }
    }

    #[test]
    fn a_job_whose_comment_was_changed_is_known_by_its_name_and_number() {
        let line =
            |id: u32, comment: &str| format!("@{id}|RUNNING|{comment}|n1|0|1|N/A|None|{UUID}\n");
        let seen = |listing: &str| super::parse(listing, "me", &Job12).unwrap();
        for comment in [
            "see ticket 7",
            "(null)",
            "zzzzz-gj3su-111111111111111 other",
            "a|b",
        ] {
            let rows = seen(&line(12, comment));
            assert_eq!(rows[0].container.as_str(), UUID, "{comment}");
            assert_eq!(
                rows[0].attempt.as_ref().unwrap().as_str(),
                ATTEMPT,
                "{comment}"
            );
            assert_eq!(seen(&line(13, comment)), []);
        }
    }

    #[test]
    fn a_job_that_was_renamed_is_known_by_its_attempt() {
        let listing = format!("@12|RUNNING|{ATTEMPT} me|n1|0|1|N/A|None|another name\n");
        let container = ContainerUuid::parse(UUID).unwrap();
        let rows = super::parse(&listing, "me", &Job12).unwrap();
        assert_eq!(rows[0].container, container);
        assert!(parse(&listing, "me").is_err());
    }

    #[test]
    fn a_listing_is_ours_by_its_comment_and_foreign_names_may_be_anything() {
        let listing = format!(
            "@12|RUNNING|{ATTEMPT} me|n1|10000|4294891759|1795287176|None|{UUID}\n\
             @13|PENDING|(null)||0|1|N/A|Priority|my job | with a pipe\n\
             @18|PENDING|a\nb||0|1|N/A|Priority|a name\non two lines\n\
             @14_[1-3]|PENDING|(null)||0|1|N/A|None|array\n\
             @15_7|PENDING|odd me||20|4294891760|N/A|ReqNodeNotAvail, UnavailableNodes:q[1-2]|{UUID}\n\
             @16|RUNNING|{ATTEMPT} other|n1|0|1|N/A|None|{UUID}\n\
             @17|RUNNING|(null)|n1|0|1|N/A|None|{UUID}\n"
        );
        let rows = parse(&listing, "me").unwrap();
        let seen: Vec<_> = rows
            .iter()
            .map(|r| (r.id.as_str(), r.meaning, r.attempt.is_some()))
            .collect();
        assert_eq!(
            seen,
            [
                ("12", Meaning::Active, true),
                ("15_7", Meaning::Pending, false)
            ]
        );
        assert_eq!(rows[0].job().node.as_deref(), Some("n1"));
        assert_eq!(
            rows[0].start.map(|start| start.to_string()).as_deref(),
            Some("2026-11-21T18:52:56Z")
        );
        assert_eq!(rows[1].job().node, None);
        assert_eq!(rows[1].start, None);
        assert_eq!(rows[1].standing.nice, 20);
        assert_eq!(rows[1].standing.priority, 4_294_891_760);
        assert_eq!(rows[1].reason, "ReqNodeNotAvail, UnavailableNodes:q[1-2]");
        assert!(parse("", "me").unwrap().is_empty());
        assert!(parse("CLUSTER: east\n", "me").unwrap().is_empty());
        let named = format!("CLUSTER: east\n{listing}");
        assert_eq!(parse(&named, "me").unwrap(), rows);
        let ended = format!("@9|COMPLETED|{ATTEMPT} me||0|1|N/A|None|{UUID}\n");
        assert!(parse(&ended, "me").unwrap()[0].job().ended);
    }

    #[test]
    fn a_cut_line_is_no_listing() {
        let whole = format!("@12|RUNNING|{ATTEMPT} me|n1|0|1|N/A|None|{UUID}\n");
        assert_eq!(parse(&whole, "me").unwrap().len(), 1);
        for bytes in 1..whole.len() {
            assert!(parse(&whole[..bytes], "me").is_err(), "{bytes}");
            assert!(parse(&whole[bytes..], "me").is_err(), "from {bytes}");
        }
        let foreign = "@11|RUNNING|(null)|n1|0|1|N/A|None|whole\n";
        for listing in [
            whole.replace("queued", "que\u{fffd}ed"),
            whole.replace("RUN", "RUN\u{fffd}"),
            whole.replace("|0|", "|x|"),
            whole.replace('\n', "\nmore\n"),
            format!("{foreign}{}", whole.replace('@', "\u{fffd}")),
            format!("{foreign}{}", whole.trim_end()),
            "slurm_load_jobs error: Unable to contact\n".into(),
            "@x|a|b|c\n".into(),
            "\n".into(),
        ] {
            assert!(parse(&listing, "me").is_err(), "{listing}");
        }
    }

    #[test]
    fn an_invented_state_keeps_us_waiting() {
        assert_eq!(meaning("HIBERNATING"), Meaning::Active);
        assert_eq!(meaning("COMPLETING"), Meaning::Active);
        assert_eq!(meaning("NODE_FAIL"), Meaning::Ended);
    }
}

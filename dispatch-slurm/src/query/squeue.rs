//! Reads `squeue`: all rows of this dispatcher, or an error.
//!
//! Input: a listing in [`LISTING_FORMAT`], which `scheduler/slurm_answer.rs` of dispatch-core
//! splits into rows. Output: [`Row`]s. Formats and states: squeue(1), sections FORMAT and JOB STATE
//! CODES.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::world::{Job, JobId};
use jiff::Timestamp;

use crate::job_comment;

/// Job id, state, comment, nodes, nice, priority, start, reason, name. No field has a width, so
/// none is cut. The two that may hold any text come last.
pub const LISTING_FORMAT: &str = "@%i|%T|%k|%N|%y|%Q|%S|%r|%j";
/// Environment variable that makes Slurm print times as Unix time; its default format is local time
/// without a zone.
pub const TIME_FORMAT: (&str, &str) = ("SLURM_TIME_FORMAT", "%s");

/// Phase of a job, by its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPhase {
    /// Not started yet.
    Pending,
    /// Started, or completing.
    Active,
    /// It will not run again.
    Ended,
}

/// A line that does not have the requested format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("squeue wrote a line that cannot be read: {0:?}")]
pub struct ParseError(String);

/// Position of a pending job in Slurm's queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueuePosition {
    /// Slurm's priority of the job, nice value subtracted.
    pub priority: i64,
    /// Nice value of the job.
    pub nice: i64,
}

/// A job of this dispatcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Job id; that of an array element is `12_3`.
    pub id: String,
    pub phase: JobPhase,
    /// State, as Slurm names it.
    pub state: String,
    /// From the name of the job.
    pub container: ContainerUuid,
    /// From the comment of the job.
    pub attempt: Option<TokenUuid>,
    /// Node on which it runs.
    pub node: Option<String>,
    pub position: QueuePosition,
    /// Start time, or the expected one.
    pub start: Option<Timestamp>,
    /// Why it is pending, as Slurm names it.
    pub reason: String,
}

impl Row {
    /// The job, as the controller sees it.
    pub fn job(&self) -> Job {
        Job {
            id: JobId(self.id.clone()),
            container: self.container.clone(),
            attempt: self.attempt.clone(),
            ended: self.phase == JobPhase::Ended,
            node: self.node.clone(),
        }
    }
}

/// Recorded jobs, for jobs whose name or comment was changed.
pub trait JobIndex {
    /// The container of an attempt.
    fn container(&self, attempt: &TokenUuid) -> Option<ContainerUuid>;
    /// The attempt of this container whose job has this id.
    fn attempt(&self, container: &ContainerUuid, id: &str) -> Option<TokenUuid>;
}

/// Parses the rows of the dispatcher `instance_id`; jobs of others are skipped. A job that was
/// renamed belongs to the container that `index` has for its attempt. A job whose comment was
/// changed is found by its name and id.
pub fn parse(
    listing: &str,
    instance_id: &str,
    index: &impl JobIndex,
) -> Result<Vec<Row>, ParseError> {
    let listing = without_greetings(listing);
    if listing.is_empty() {
        return Ok(Vec::new());
    }
    // Without a line break at the end, the last name may be cut.
    let cut = || ParseError(listing.lines().last().unwrap_or_default().to_owned());
    let body = listing.strip_suffix('\n').ok_or_else(cut)?;
    let head = || ParseError(body.lines().next().unwrap_or_default().to_owned());
    let body = body.strip_prefix('@').ok_or_else(head)?;
    let rows = body
        .split("\n@")
        .map(|line| parse_row(line, instance_id, index));
    rows.filter_map(Result::transpose).collect()
}

/// The listing without what a site prints before and after it: lines of several words that cannot
/// be a part of a row.
fn without_greetings(mut listing: &str) -> &str {
    let is_greeting = |line: &str| {
        let words = line.trim();
        let is_damage = words.contains(['|', '@', '\u{fffd}']) || words.contains("error");
        !is_damage && words.contains(' ')
    };
    while let Some((line, rest)) = listing.split_once('\n')
        && is_greeting(line)
    {
        listing = rest;
    }
    while let Some(last) = listing.lines().next_back()
        && listing.ends_with('\n')
        && is_greeting(last)
    {
        listing = &listing[..listing.len() - last.len() - 1];
    }
    listing
}

fn parse_row(
    line: &str,
    instance_id: &str,
    index: &impl JobIndex,
) -> Result<Option<Row>, ParseError> {
    let parse_error = || ParseError(line.to_owned());
    let (id, rest) = line.split_once('|').ok_or_else(parse_error)?;
    let (state, rest) = rest.split_once('|').ok_or_else(parse_error)?;
    let (comment, rest) = rest.split_once('|').ok_or_else(parse_error)?;
    let damaged = [id, state, comment].iter().any(|f| f.contains('\u{fffd}'));
    if damaged || !id.starts_with(|c: char| c.is_ascii_digit()) || state.is_empty() {
        return Err(parse_error());
    }
    let (attempt, by) = job_comment::marks(comment);
    let name = line.rsplit('|').next().unwrap_or_default();
    let container = ContainerUuid::parse(name).ok();
    let remembered = |container: &ContainerUuid| index.attempt(container, id);
    let remembered_attempt = (by != instance_id).then(|| container.as_ref().and_then(remembered));
    if let Some(None) = remembered_attempt {
        // A row of another job that contains a row of ours has lost the mark between them.
        let of = |mark: char| {
            let ends = ["|", &format!("{mark}user="), &format!("{mark}project=")];
            let starts = format!("{mark}{instance_id}");
            ends.iter()
                .any(|end| line.contains(&(starts.clone() + end)))
        };
        let hides_our_row = of(' ') || of(',');
        return if hides_our_row {
            Err(parse_error())
        } else {
            Ok(None)
        };
    }
    let attempt = remembered_attempt
        .clone()
        .unwrap_or_else(|| TokenUuid::parse(attempt).ok());
    let container = container.or_else(|| index.container(attempt.as_ref()?));
    let fields = match (parse_fields(rest), remembered_attempt) {
        (Some(fields), _) => fields,
        // A changed comment may look like more fields.
        (None, Some(_)) => RowFields::default(),
        // Rows of this dispatcher always parse; one that does not was damaged.
        (None, None) => return Err(parse_error()),
    };
    Ok(Some(Row {
        id: id.to_owned(),
        phase: job_phase(state),
        state: state.to_owned(),
        container: container.ok_or_else(parse_error)?,
        attempt,
        node: fields.node,
        position: fields.position,
        start: fields.start,
        reason: fields.reason,
    }))
}

/// Fields of a row besides its owner. A priority of 0 is that of a held job.
#[derive(Default)]
struct RowFields {
    node: Option<String>,
    position: QueuePosition,
    start: Option<Timestamp>,
    reason: String,
}

fn parse_fields(rest: &str) -> Option<RowFields> {
    let fields: Vec<&str> = rest.splitn(5, '|').collect();
    let [nodes, nice, priority, start, last] = fields[..] else {
        return None;
    };
    let (reason, _) = last.rsplit_once('|')?;
    let start = start.parse().ok();
    Some(RowFields {
        node: Some(nodes.to_owned()).filter(|nodes| !nodes.is_empty()),
        position: QueuePosition {
            priority: priority.parse().ok()?,
            nice: nice.parse().ok()?,
        },
        start: start.and_then(|second| Timestamp::from_second(second).ok()),
        reason: reason.to_owned(),
    })
}

/// Phase of a state. An unknown state counts as active.
pub fn job_phase(state: &str) -> JobPhase {
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
        | "RESV_DEL_HOLD" => JobPhase::Pending,
        "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "NODE_FAIL"
        | "OUT_OF_MEMORY" | "PREEMPTED" | "REVOKED" | "TIMEOUT" => JobPhase::Ended,
        _ => JobPhase::Active,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dispatch_core::model::owner::Owner;

    const UUID: &str = "zzzzz-dz642-queuedcontainer";
    const ATTEMPT: &str = "zzzzz-gj3su-000000000000000";

    fn parse(listing: &str, instance_id: &str) -> Result<Vec<Row>, ParseError> {
        super::parse(listing, instance_id, &())
    }

    impl JobIndex for () {
        fn container(&self, _: &TokenUuid) -> Option<ContainerUuid> {
            None
        }

        fn attempt(&self, _: &ContainerUuid, _: &str) -> Option<TokenUuid> {
            None
        }
    }

    struct Job12;

    impl JobIndex for Job12 {
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
        let parsed = |listing: &str| super::parse(listing, "me", &Job12).unwrap();
        for comment in [
            "see ticket 7",
            "(null)",
            "zzzzz-gj3su-111111111111111 other",
            "a|b",
        ] {
            let rows = parsed(&line(12, comment));
            assert_eq!(rows[0].container.as_str(), UUID, "{comment}");
            assert_eq!(
                rows[0].attempt.as_ref().unwrap().as_str(),
                ATTEMPT,
                "{comment}"
            );
            assert_eq!(parsed(&line(13, comment)), []);
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
        let parsed: Vec<_> = rows
            .iter()
            .map(|r| (r.id.as_str(), r.phase, r.attempt.is_some()))
            .collect();
        assert_eq!(
            parsed,
            [
                ("12", JobPhase::Active, true),
                ("15_7", JobPhase::Pending, false)
            ]
        );
        assert_eq!(rows[0].job().node.as_deref(), Some("n1"));
        assert_eq!(
            rows[0].start.map(|start| start.to_string()).as_deref(),
            Some("2026-11-21T18:52:56Z")
        );
        assert_eq!(rows[1].job().node, None);
        assert_eq!(rows[1].start, None);
        assert_eq!(rows[1].position.nice, 20);
        assert_eq!(rows[1].position.priority, 4_294_891_760);
        assert_eq!(rows[1].reason, "ReqNodeNotAvail, UnavailableNodes:q[1-2]");
        assert!(parse("", "me").unwrap().is_empty());
        let ended = format!("@9|COMPLETED|{ATTEMPT} me||0|1|N/A|None|{UUID}\n");
        assert!(parse(&ended, "me").unwrap()[0].job().ended);
    }

    #[test]
    fn a_comment_names_user_and_project_and_is_found_with_and_without_them() {
        let attempt = TokenUuid::parse(ATTEMPT).unwrap();
        let project = "zzzzz-j7d0g-000000000000001";
        let owner = |username: &str, project: Option<&str>| Owner {
            username: Some(username.to_owned()),
            project: project.map(|uuid| uuid.parse().unwrap()),
            ..Owner::default()
        };
        let both = format!("{ATTEMPT} me user=ada project={project}");
        for (owner, expected) in [
            (Some(owner("ada", Some(project))), both.as_str()),
            (Some(owner("ada", None)), &format!("{ATTEMPT} me user=ada")),
            // A name that could be taken for more than a name is left out.
            (Some(owner("a|b other", None)), &format!("{ATTEMPT} me")),
            (None, &format!("{ATTEMPT} me")),
        ] {
            let owner = owner.as_ref();
            assert_eq!(job_comment::write(&attempt, "me", owner), expected);
            let one_word = job_comment::write_without_space(&attempt, "me", owner);
            assert!(!one_word.contains(' '), "{one_word}");
            for comment in [expected, &one_word] {
                let line = format!("@12|PENDING|{comment}||0|1|N/A|None|{UUID}\n");
                let rows = parse(&line, "me").unwrap();
                assert_eq!(rows[0].attempt.as_ref(), Some(&attempt), "{comment}");
                assert!(parse(&line, "other").unwrap().is_empty());
                // A row that has lost the mark before it is no part of another job's name.
                let foreign = "@11|RUNNING|(null)|n1|0|1|N/A|None|whole\n";
                let merged = format!("{foreign}{}", line.replace('@', "\u{fffd}"));
                assert!(parse(&merged, "me").is_err(), "{comment}");
            }
        }
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
    fn greetings_hide_nothing() {
        let row = format!("@12|RUNNING|{ATTEMPT} me|n1|0|1|N/A|None|{UUID}\n");
        for (listing, rows) in [
            (format!("Welcome to us!\n{row}See you!\nAnd so on.\n"), 1),
            ("See you!\n".to_owned(), 0),
        ] {
            let parsed = parse(&listing, "me").unwrap();
            assert_eq!(parsed.len(), rows, "{listing}");
        }
    }

    #[test]
    fn an_invented_state_keeps_us_waiting() {
        assert_eq!(job_phase("HIBERNATING"), JobPhase::Active);
        assert_eq!(job_phase("COMPLETING"), JobPhase::Active);
        assert_eq!(job_phase("NODE_FAIL"), JobPhase::Ended);
    }
}

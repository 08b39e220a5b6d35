//! What Slurm's commands print: no text makes the parsers panic, and a job that is found belongs to
//! this dispatcher.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_slurm::query::exit_record::{parse_exit_status, parse_sacct, parse_squeue};
use dispatch_slurm::query::node_classes::NodeClasses;
use dispatch_slurm::query::sinfo::parse_partitions;
use dispatch_slurm::query::squeue::{self, JobIndex};

const INSTANCE: &str = "0123456789abcdef";
const ATTEMPT: &str = "local-gj3su-0123456789abcde";

struct NoRecords;

impl JobIndex for NoRecords {
    fn container(&self, _: &TokenUuid) -> Option<ContainerUuid> {
        None
    }

    fn attempt(&self, _: &ContainerUuid, _: &str) -> Option<TokenUuid> {
        None
    }
}

/// Checks the rules with this input.
pub fn check(text: &str) {
    if let Ok(rows) = squeue::parse(text, INSTANCE, &NoRecords) {
        assert!(rows.is_empty() || text.contains(INSTANCE));
        for row in rows {
            let _ = row.job();
        }
    }
    let attempt = TokenUuid::parse(ATTEMPT).expect("a uuid");
    for job in [None, Some("12")] {
        let records = [
            parse_squeue(text, &attempt, job),
            parse_sacct(text, &attempt, job),
        ];
        for record in records.into_iter().flatten() {
            let _ = record.describe(None);
            let _ = record.was_never_started() || record.needs_exit_status();
        }
    }
    let _ = parse_exit_status(text);
    if let Some(classes) = NodeClasses::parse(text) {
        let _ = classes.with_partitions(&parse_partitions(text));
    }
}

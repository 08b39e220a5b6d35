//! What HTCondor's commands print: no text makes the parsers panic.

use dispatch_condor::query::condor_q;
use dispatch_condor::query::exit_record::describe_exit;
use dispatch_condor::query::pending_reason::{disconnected_jobs, requested_memory};
use dispatch_condor::query::slot_classes::SlotClasses;

/// Checks the rules with this input.
pub fn check(text: &str) {
    if let Ok(ads) = condor_q::parse(text) {
        for ad in &ads {
            if let Some(job) = ad.to_job() {
                assert_eq!(job.container.as_str(), ad.container());
            }
            let _ = (
                ad.id(),
                ad.state(),
                ad.disconnected(),
                ad.hold(),
                ad.node(),
                ad.needs(),
            );
            let _ = (
                ad.queue_position().sort_key(),
                ad.may_have_run(),
                ad.has_literal_requests(),
            );
            let _ = (describe_exit(ad), requested_memory(ad));
        }
        let _ = disconnected_jobs(&ads);
    }
    if let Some(classes) = SlotClasses::parse(text) {
        let _ = classes.machines();
    }
}

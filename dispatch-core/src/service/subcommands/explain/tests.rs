//! Tests of the sentences of `explain`.

use std::sync::Arc;

use arvados_client::{GroupUuid, UserUuid};
use serde_json::{Value, json};

use super::*;
use crate::model::world::JobId;

const NAMES: SchedulerTerms = SchedulerTerms {
    scheduler: "Slurm",
    program: "dispatch-slurm",
    ask: "squeue --start --job=",
};

fn facts(record: Value, held_by_us: bool, jobs: &[(&str, Option<&str>)]) -> ExplainInput {
    let mut all = json!({"uuid": "zzzzz-dz642-queuedcontainer", "priority": 7});
    for (key, value) in record.as_object().unwrap() {
        all[key] = value.clone();
    }
    let container: Container = serde_json::from_value(all).unwrap();
    let job = |(id, node): &(&str, Option<&str>)| Job {
        id: JobId((*id).to_owned()),
        container: container.uuid.clone(),
        attempt: None,
        ended: false,
        node: node.map(str::to_owned),
    };
    ExplainInput {
        names: NAMES,
        analysis: None,
        jobs: Ok(jobs.iter().map(job).collect()),
        container,
        held_by_us,
        waiting: None,
        ended: None,
        fit: Admission::Now,
        host_fault: None,
        notes: Ok(Vec::new()),
        own_user: Some(service_user()),
        owner: None,
    }
}

#[test]
fn every_state_has_its_reason() {
    let locked = "zzzzz-gj3su-000000000000000";
    #[rustfmt::skip]
    let rows = [
        (facts(json!({"state": "Complete", "exit_code": 3}), false, &[]), "with exit code 3"),
        (facts(json!({"state": "Cancelled", "runtime_status": {"error": "no disk"}}), false, &[]), "it was cancelled: no disk"),
        (facts(json!({"state": "Odd"}), false, &[]), "leaves it alone"),
        (facts(json!({"state": "Queued", "priority": 0}), false, &[]), "its priority is 0"),
        (facts(json!({"state": "Running", "priority": 0}), true, &[("3", None)]), "is cancelling job 3"),
        (facts(json!({"state": "Queued"}), false, &[]), "submits it when it is its user's turn"),
        (facts(json!({"state": "Queued"}), false, &[("3", None)]), "of an earlier attempt still exists"),
        (facts(json!({"state": "Locked", "locked_by_uuid": locked}), false, &[]), "another dispatcher"),
        (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[("3", None)]), "waits in Slurm"),
        (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[("3", Some("n1"))]), "job 3 has started on n1"),
        (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[]), "is submitting its job"),
        (facts(json!({"state": "Running", "locked_by_uuid": locked, "runtime_status": {"activity": "saving"}}), true, &[("3", None)]), "it runs as job 3: saving"),
        (facts(json!({"state": "Running", "locked_by_uuid": locked}), true, &[]), "its job is gone"),
    ];
    for (n, (facts, words)) in rows.iter().enumerate() {
        let got = explain(facts).why;
        assert!(got.contains(words), "row {n}: {got}");
    }
}

fn service_user() -> UserUuid {
    UserUuid::parse("zzzzz-tpzed-000000000000009").unwrap()
}

fn note(decision: &str, text: &str) -> Note {
    Note {
        at: "2026-11-22T04:00:00Z".parse().unwrap(),
        by: Some(service_user()),
        text: text.to_owned(),
        decision: decision.to_owned(),
    }
}

#[test]
fn what_holds_a_queued_container_is_told_as_the_service_told_it_last() {
    let mut facts = facts(json!({"state": "Queued", "lock_count": 1}), false, &[]);
    let held = note("deferred", "not run now: Slurm says AssocMaxSubmitJobLimit");
    let refused = note(
        "submit_failed",
        "could not submit it: AssocMaxSubmitJobLimit",
    );
    facts.notes = Ok(vec![held.clone(), refused.clone()]);
    let why = explain(&facts).why;
    let expected = "not run now: Slurm says AssocMaxSubmitJobLimit (the dispatcher, 2026-11-22 04:00:00 UTC). When that";
    assert!(why.starts_with(expected), "{why}");
    facts.notes = Ok(vec![refused, held]);
    let why = explain(&facts).why;
    assert!(why.starts_with("the dispatcher submits it when"), "{why}");
    // Any user of an Arvados server may write about any container.
    let mut forged = note("deferred", "not run now: ask mallory");
    forged.by = UserUuid::parse("zzzzz-tpzed-000000000000001").ok();
    facts.notes = Ok(vec![forged]);
    let answer = explain(&facts);
    assert!(!answer.why.contains("mallory"), "{}", answer.why);
    assert!(answer.last[0].ends_with("(written by zzzzz-tpzed-000000000000001)"));
    facts.notes = Err("not known: no answer".to_owned());
    assert_eq!(explain(&facts).last, ["not known: no answer"]);
}

#[test]
fn a_fault_of_this_host_is_told_of_what_waits_for_it() {
    let locked = json!({"state": "Locked", "locked_by_uuid": "zzzzz-gj3su-000000000000000"});
    let queued = |priority| json!({"state": "Queued", "priority": priority});
    for (record, jobs, expected) in [
        (queued(1), &[][..], true),
        (queued(0), &[][..], false),
        (locked.clone(), &[][..], true),
        (locked, &[("3", None)][..], false),
    ] {
        let mut facts = facts(record, true, jobs);
        facts.host_fault = Some("this host can submit jobs: the disk is full".to_owned());
        let why = explain(&facts).why;
        assert_eq!(
            why.ends_with("can submit jobs: the disk is full"),
            expected,
            "{why}"
        );
    }
}

#[test]
fn what_slurm_says_is_told() {
    let mut facts = facts(json!({"state": "Queued"}), false, &[]);
    facts.fit = Admission::Never("too large".into());
    assert!(explain(&facts).why.ends_with("too large"));
    facts.ended = Some("it was lost".into());
    facts.container.state = ContainerState::Locked;
    facts.held_by_us = true;
    let why = explain(&facts).why;
    assert!(
        why.starts_with("its job has ended") && why.ends_with("it was lost"),
        "{why}"
    );
    assert_eq!(explain(&facts).jobs, "no job any more; it was lost");
    facts.notes = Ok(vec![note("dispatched", "dispatched as job 3")]);
    let page = explain(&facts).text();
    assert!(
        page.ends_with("before  2026-11-22 04:00:00 UTC, dispatched as job 3\n"),
        "{page}"
    );
    facts.jobs = Err("no answer".into());
    let answer = explain(&facts);
    assert_eq!(answer.jobs, "no answer");
    assert!(answer.why.contains("does not answer"));
    let text = answer.text();
    let expected = "uuid    zzzzz-dz642-queuedcontainer\nrecord  Locked, priority 7";
    assert!(text.starts_with(expected), "{text}");
    facts.owner = Some(Arc::new(Owner {
        user: UserUuid::parse("zzzzz-tpzed-000000000000001").ok(),
        username: Some("ada".into()),
        project: GroupUuid::parse("zzzzz-j7d0g-000000000000001").ok(),
        project_name: Some("RNA".into()),
    }));
    let text = explain(&facts).text();
    let line = "for     user ada, project \"RNA\" (zzzzz-j7d0g-000000000000001)\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_job_that_waits_says_for_what() {
    let locked = "zzzzz-gj3su-000000000000000";
    let record = json!({"state": "Locked", "locked_by_uuid": locked});
    let mut facts = facts(record, true, &[("3", None)]);
    facts.waiting = Some(PendingReason {
        outlook: PendingOutlook::Transient,
        text: "for free nodes".into(),
    });
    assert_eq!(explain(&facts).why, "job 3 waits in Slurm: for free nodes");
    facts.container.runtime_status.activity = Some("no node has it".into());
    let better = "job 3 waits in Slurm: no node has it";
    assert_eq!(explain(&facts).why, better);
    facts.container.runtime_status.activity = Some("Slurm job 3 waits for Ada".into());
    assert_eq!(explain(&facts).why, "job 3 waits for Ada");
}

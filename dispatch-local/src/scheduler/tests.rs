//! A container that was locked while another dispatcher took its room.

use std::collections::BTreeMap;
use std::path::Path;

use arvados_client::Token;
use dispatch_core::scheduler::credentials::Credentials;
use dispatch_core::service::state_dir::StateDir;

use super::*;
use crate::crunch_run::CrunchRun;
use crate::job_dir::JobRecord;
use crate::local::{State, TrackedJob};
use crate::machine::ResourceCaps;
use crate::machine_claims::MachineClaims;
use crate::reservation::Reservation;

fn local(dir: &Path, claims: MachineClaims) -> Local {
    let scratch = dir.join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let crunch_run = CrunchRun {
        program: "/bin/false".into(),
        scratch: scratch.clone(),
        cache: dir.join("cache"),
        arguments: Vec::new(),
        server: BTreeMap::new(),
    };
    let state_dir = StateDir::acquire(&dir.join("state")).unwrap();
    let caps = ResourceCaps::default();
    Local::new(state_dir, scratch, caps, crunch_run, Some(claims)).unwrap()
}

#[test]
fn disk_space_that_others_took_is_not_free() {
    let dir = tempfile::tempdir().unwrap();
    let claims = MachineClaims::open(&dir.path().join("claims"), "ours").unwrap();
    let local = local(dir.path(), claims);
    let shared = &local.shared;
    let free_now = crate::machine::free_space(&shared.scratch).unwrap();
    // So much more was free when the machine was idle.
    let taken = 1 << 40;
    shared.state.lock().machine.scratch = free_now + taken;
    let shown = local.capacity().unwrap();
    assert_eq!(shown.total.scratch, free_now + taken);
    // Others write to this disk, too.
    let about = |amount: u64| (free_now / 2..free_now * 2).contains(&amount);
    assert!(about(shown.free.scratch), "{shown:?} {free_now}");

    let candidate = |scratch| Candidate {
        container: ContainerUuid::generate("zzzzz"),
        needs: ResourceRequest {
            cpus: 1,
            scratch,
            ..ResourceRequest::default()
        },
        was_locked: false,
        runners: Vec::new(),
    };
    // One that has no room is not next: the others, and other dispatchers, need not wait for it.
    let answers = local.admit(&[candidate(taken), candidate(1)], &[]);
    assert!(matches!(answers[0], Admission::Later(_)), "{answers:?}");
    assert_eq!(answers[1], Admission::Now);
    assert!(shared.state.lock().head.is_none());

    // What jobs took of their own reservations is counted once.
    let reserved = |scratch| ResourceVector::new(0, 0, scratch, 0, 0);
    let machine = shared.state.lock().machine.clone();
    let by_others = |bytes| {
        let space = shared.taken_by_others(&machine, reserved(bytes));
        space.get(ResourceKind::Scratch)
    };
    assert_eq!(by_others(2 * taken), 0);
    let half = by_others(taken / 2);
    assert!((taken / 4..taken).contains(&half), "{half}");
}

#[tokio::test]
async fn who_finds_its_room_taken_waits_and_says_for_what() {
    let dir = tempfile::tempdir().unwrap();
    let claims = dir.path().join("claims");
    let [ours, theirs] = ["ours", "theirs"].map(|name| MachineClaims::open(&claims, name).unwrap());
    let local = local(dir.path(), ours);
    let all = Reservation {
        cpus: local
            .shared
            .state
            .lock()
            .machine
            .cpus
            .iter()
            .copied()
            .collect(),
        ..Reservation::default()
    };
    let needs = ResourceRequest {
        cpus: 1,
        ..ResourceRequest::default()
    };
    let container = ContainerUuid::generate("zzzzz");
    let submit = async |needs: &ResourceRequest| {
        let order = SubmitRequest {
            container: container.clone(),
            attempt: TokenUuid::generate("zzzzz"),
            credentials: Credentials {
                token: Token::new("unused"),
                gateway_secret: None,
            },
            needs: needs.clone(),
            avoid: Vec::new(),
            owner: None,
        };
        local.submit(vec![order]).await.remove(0).unwrap_err()
    };
    let reasons = |holder: &str| {
        let expected = PendingReason {
            outlook: PendingOutlook::Transient,
            text: format!("waits for 1 CPU, which {holder}"),
        };
        BTreeMap::from([(container.clone(), expected)])
    };
    let of_theirs = ContainerUuid::generate("zzzzz");
    theirs.publish(&of_theirs, &all, std::process::id());
    let answer = submit(&needs).await;
    assert!(
        matches!(answer, SchedulerError::NotTried { .. }),
        "{answer}"
    );
    let others = reasons("a job of others on this machine took first");
    assert_eq!(local.pending_reasons(), others);

    // A container of ours is final, but its crunch-run has not ended.
    let ending = TrackedJob {
        record: Some(JobRecord {
            attempt: TokenUuid::generate("zzzzz"),
            reservation: all,
            limit: None,
            submitted_at: 0,
        }),
        worker: None,
        started: None,
    };
    let of_ours = ContainerUuid::generate("zzzzz");
    let jobs = |state: &mut State| state.jobs.insert(of_ours.clone(), ending);
    jobs(&mut local.shared.state.lock());
    let answer = submit(&needs).await;
    assert!(
        matches!(answer, SchedulerError::NotTried { .. }),
        "{answer}"
    );
    let ours = reasons("a job that is ending here still holds");
    assert_eq!(local.pending_reasons(), ours);

    let too_many = ResourceRequest {
        cpus: u32::MAX,
        ..ResourceRequest::default()
    };
    let answer = submit(&too_many).await;
    assert!(matches!(answer, SchedulerError::Refused { .. }), "{answer}");

    let locked = Candidate {
        container: container.clone(),
        needs,
        was_locked: true,
        runners: Vec::new(),
    };
    local.admit(&[], std::slice::from_ref(&locked));
    assert_eq!(local.pending_reasons(), ours);
    // It was unlocked, or runs.
    local.admit(&[], &[]);
    assert!(local.pending_reasons().is_empty());
}

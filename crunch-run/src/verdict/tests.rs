//! Endings, and the verdicts they get.

use super::*;
use crate::limits::Resource;
use cgroup::{GroupMemory, SharedKills};

/// A command's end, and the expected verdict.
type Case = (
    Ending,
    Output,
    ContainerState,
    Option<i32>,
    VerdictKind,
    &'static str,
);

const MIB: u64 = 1 << 20;

fn exit(status: ExitStatus, oom_kills: u64) -> Exit {
    Exit {
        status,
        oom_killed: oom_kills > 0,
        killed_for_memory: false,
        oom_kills,
        peak_memory: Some(64 * MIB),
        job_group: None,
        largest_process: None,
        processes: Processes::default(),
    }
}

fn evidence() -> Evidence {
    Evidence {
        memory_limit: Some(64 * MIB),
        processes: Processes::default(),
    }
}

fn saved() -> Output {
    Output::Saved(Pdh::parse(Pdh::EMPTY).unwrap())
}

#[test]
fn a_kill_in_the_job_s_control_group_is_told_with_its_limit() {
    let found = |is_alone| SharedKills {
        kills: 1,
        is_alone,
        memory: GroupMemory {
            limit: Some(32 * MIB),
            peak: Some(31 * MIB),
        },
    };
    let (signal, shell) = (ExitStatus::Signal(9), ExitStatus::Code(137));
    for (status, is_alone, kind) in [
        (signal, true, VerdictKind::Memory),
        (signal, false, VerdictKind::Memory),
        // A shell passes on how its child ended.
        (shell, false, VerdictKind::Memory),
        (ExitStatus::Code(1), true, VerdictKind::Memory),
        (ExitStatus::Code(0), true, VerdictKind::ChildOutOfMemory),
        // The killed process may belong to another container.
        (ExitStatus::Code(1), false, VerdictKind::Exited),
        (ExitStatus::Code(0), false, VerdictKind::Exited),
    ] {
        let exit = exit(status, 0).with_job_group(Some(found(is_alone)));
        let verdict = judge(&Ending::Exited(exit), saved(), evidence());
        assert_eq!(verdict.kind, kind, "{status:?} {is_alone}");
        let Some(reason) = verdict.error.or(verdict.warning) else {
            assert_eq!(kind, VerdictKind::Exited);
            continue;
        };
        assert!(
            reason.sentence.contains("used 31.0 MiB of 32.0 MiB"),
            "{reason:?}"
        );
        let detail = "the control group of its job counts 1 out-of-memory kill; \
                      highest use 32505856 bytes, limit 33554432 bytes";
        assert!(reason.detail.starts_with(detail), "{reason:?}");
    }
    let killed = exit(signal, 0).with_job_group(None);
    let verdict = judge(&Ending::Exited(killed), saved(), evidence());
    assert_eq!(
        (verdict.kind, verdict.error),
        (VerdictKind::Signalled, None)
    );
}

#[test]
fn endings_and_their_verdicts() {
    use ContainerState::{Cancelled, Complete};
    let code = |n| Ending::Exited(exit(ExitStatus::Code(n), 0));
    let killed = exit(ExitStatus::Signal(9), 0);
    let stopped = |cause| Ending::Stopped {
        cause,
        exit: Some(killed),
    };
    let cases: Vec<Case> = vec![
        (code(0), saved(), Complete, Some(0), VerdictKind::Exited, ""),
        (code(3), saved(), Complete, Some(3), VerdictKind::Exited, ""),
        (
            Ending::Exited(killed),
            saved(),
            Complete,
            Some(137),
            VerdictKind::Signalled,
            "",
        ),
        (
            Ending::Exited(exit(ExitStatus::Signal(9), 1)),
            saved(),
            Complete,
            Some(137),
            VerdictKind::Memory,
            "killed by its memory limit: used 64.0 MiB of 64.0 MiB; ask for more (--memory of dispatch, ram of the API)",
        ),
        (
            code(0),
            Output::Invalid("link x leads out".into()),
            Cancelled,
            Some(0),
            VerdictKind::BadOutput,
            "its output cannot be saved: link x leads out",
        ),
        (
            code(0),
            Output::Interrupted(Cause::PriorityZero),
            Cancelled,
            Some(0),
            VerdictKind::PriorityZero,
            "saving its output was stopped because its priority was set to 0",
        ),
        (
            stopped(Cause::Signal("TERM")),
            Output::NotNeeded,
            Cancelled,
            Some(137),
            VerdictKind::Stopped,
            "it was stopped on request (signal TERM)",
        ),
        (
            stopped(Cause::Signal("XCPU")),
            Output::NotNeeded,
            Cancelled,
            Some(137),
            VerdictKind::WallTime,
            "the time limit of its job was reached: it was stopped (signal XCPU); ask for more (--time of dispatch, max_run_time of the API), or for a partition that gives more",
        ),
        (
            stopped(Cause::MaxRunTime(Duration::from_secs(5))),
            Output::NotNeeded,
            Cancelled,
            Some(137),
            VerdictKind::WallTime,
            "maximum run time exceeded: it was stopped after 5 s; ask for more (--time of dispatch, max_run_time of the API)",
        ),
        (
            Ending::NotStarted {
                reason: "no loader".into(),
                by_request: false,
            },
            Output::NotNeeded,
            Cancelled,
            None,
            VerdictKind::NotStarted,
            "the command could not be started: no loader",
        ),
        (
            Ending::Lost {
                reason: "keeper gone".into(),
            },
            Output::NotNeeded,
            Cancelled,
            None,
            VerdictKind::Lost,
            "the container was lost: keeper gone",
        ),
    ];
    let exceeded = |resource| LimitExceeded {
        resource,
        used: 3 * MIB,
        allowed: 2 * MIB,
    };
    let mut cases = cases;
    cases.extend([
        (
            stopped(Cause::Limit(exceeded(Resource::MountBytes("/out".into())))),
            Output::NotNeeded,
            Cancelled,
            Some(137),
            VerdictKind::ScratchBytes,
            "it was stopped because it used 3.0 MiB of 2.0 MiB at /out; ask for more capacity of that mount (--scratch of dispatch)",
        ),
        (
            Ending::NotStarted {
                reason: "x: no space left on device".into(),
                by_request: false,
            },
            Output::NotNeeded,
            Cancelled,
            None,
            VerdictKind::BrokenNode,
            "the command could not be started: x: no space left on device",
        ),
        (
            Ending::NotStarted {
                reason: "command \"no space left on device\" not found in the image".into(),
                by_request: true,
            },
            Output::NotNeeded,
            Cancelled,
            None,
            VerdictKind::NotStarted,
            "the command could not be started: command \"no space left on device\" not found in the image",
        ),
        (
            code(0),
            Output::TooLarge(exceeded(Resource::OutputBytes)),
            Cancelled,
            Some(0),
            VerdictKind::OutputSize,
            "its output is too large: 3.0 MiB of 2.0 MiB of output; this site limits the size of outputs",
        ),
    ]);
    for (ending, output, state, exit_code, kind, error) in cases {
        let verdict = judge(&ending, output, evidence());
        assert_eq!(verdict.state, state, "{ending:?}");
        assert_eq!(verdict.kind, kind, "{ending:?}");
        assert_eq!(verdict.exit_code, exit_code, "{ending:?}");
        let sentence = verdict.error.map(|e| e.sentence).unwrap_or_default();
        assert_eq!(sentence, error, "{ending:?}");
        assert_eq!(verdict.warning, None);
        assert_eq!(verdict.output.is_some(), state == Complete);
    }
}

#[test]
fn a_killed_child_of_a_command_that_went_on_is_a_warning() {
    let ending = Ending::Exited(exit(ExitStatus::Code(0), 2));
    let verdict = judge(&ending, saved(), evidence());
    assert_eq!(
        (verdict.kind, verdict.error),
        (VerdictKind::ChildOutOfMemory, None)
    );
    let warning = verdict.warning.unwrap();
    assert!(
        warning.sentence.starts_with("a process of it was killed"),
        "{warning:?}"
    );
    assert!(
        warning
            .detail
            .contains("counts 2 out-of-memory kills; highest use 67108864 bytes"),
        "{warning:?}"
    );
}

#[test]
fn the_update_carries_what_the_state_allows() {
    let there: RuntimeStatus =
        serde_json::from_value(json!({"activity": "x", "warning": "w", "own": 1})).unwrap();
    let log = Pdh::parse(Pdh::EMPTY).unwrap();
    let ending = Ending::Exited(exit(ExitStatus::Code(0), 1));
    let update =
        judge(&ending, saved(), Evidence::default()).update(there.clone(), Some(&log), Some(1.5));
    assert_eq!(update["state"], "Complete");
    assert_eq!(update["exit_code"], 0);
    assert_eq!(update["output"], Pdh::EMPTY);
    assert_eq!(update["cost"], 1.5);
    let status = &update["runtime_status"];
    assert_eq!(status["own"], 1);
    assert!(status.get("activity").is_none());
    assert!(status["warningDetail"].as_str().unwrap().ends_with("\nw"));

    let refused = refusal(Reason::new("s", "d")).update(there, None, None);
    let names: Vec<&String> = refused.as_object().unwrap().keys().collect();
    assert_eq!(names, ["runtime_status", "state"]);
    assert_eq!(refused["runtime_status"]["errorDetail"], "d");
}

/// The job has more memory than was requested: a reserve for crunch-run.
#[test]
fn the_reserve_of_the_job_is_told_apart_from_what_was_requested() {
    let found = SharedKills {
        kills: 1,
        is_alone: true,
        memory: GroupMemory {
            limit: Some(96 * MIB),
            peak: Some(95 * MIB),
        },
    };
    let killed = exit(ExitStatus::Signal(9), 0).with_job_group(Some(found));
    let verdict = judge(&Ending::Exited(killed), saved(), evidence());
    let sentence = verdict.error.unwrap().sentence;
    let words = "used 95.0 MiB of 96.0 MiB (64.0 MiB requested, the rest for crunch-run)";
    assert!(sentence.contains(words), "{sentence}");
}

#[test]
fn signals_are_named() {
    assert_eq!(
        describe_exit(&exit(ExitStatus::Signal(11), 0)),
        "Container exited with status code 139 (signal 11, SIGSEGV)"
    );
}

#[test]
fn processes_that_were_refused_explain_a_failure_and_are_a_warning_otherwise() {
    let evidence = Evidence {
        processes: Processes {
            refused: 12,
            limit: Some(64),
        },
        ..evidence()
    };
    let sentence = "it could not start as many processes and threads as it wanted: its limit of 64 was reached";
    let failed = Ending::Exited(exit(ExitStatus::Code(2), 0));
    let verdict = judge(&failed, saved(), evidence);
    assert_eq!(verdict.kind, VerdictKind::Processes);
    assert_eq!(verdict.error.unwrap().sentence, sentence);
    let well = Ending::Exited(exit(ExitStatus::Code(0), 0));
    let verdict = judge(&well, saved(), evidence);
    assert_eq!((verdict.kind, verdict.error), (VerdictKind::Exited, None));
    assert!(
        verdict
            .warning
            .unwrap()
            .detail
            .starts_with("its control group refused 12 of them")
    );
}

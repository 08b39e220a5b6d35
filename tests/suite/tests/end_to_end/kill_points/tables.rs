//! Every fail point by program, with its precondition and the expected end of the container.

/// What a round must do to reach a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// Every container reaches the point.
    Nothing,
    /// A crunch-run that is killed while the record is Locked.
    Unlock,
    /// A crunch-run that is killed while the record is Running.
    Verdict,
    /// A running container is cancelled by its user.
    Stop,
    /// A running container whose token ends soon.
    Renewal,
    /// A server that starts again.
    Restart,
    /// An image that is not in the node's cache.
    ColdCache,
}

/// The end of a container whose crunch-run is killed at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedEnd {
    /// The container completes, if need be after another attempt.
    Completes,
    /// The container is Cancelled, with the reason.
    Cancelled,
    /// Its results are on the node. dispatch-local delivers them and the container completes;
    /// otherwise it is Cancelled.
    Delivered,
}

#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub name: &'static str,
    pub need: Precondition,
    /// The container's end, for points of crunch-run.
    pub fate: ExpectedEnd,
}

const fn at(name: &'static str) -> Point {
    when(name, Precondition::Nothing)
}

const fn when(name: &'static str, need: Precondition) -> Point {
    Point {
        name,
        need,
        fate: ExpectedEnd::Completes,
    }
}

const fn fatal(name: &'static str) -> Point {
    Point {
        name,
        need: Precondition::Nothing,
        fate: ExpectedEnd::Cancelled,
    }
}

const fn ended(name: &'static str) -> Point {
    Point {
        name,
        need: Precondition::Nothing,
        fate: ExpectedEnd::Delivered,
    }
}

pub const DISPATCHER: &[Point] = &[
    at("dispatcher.before-mint"),
    at("dispatcher.after-mint"),
    at("dispatcher.after-lock"),
    at("dispatcher.before-submit"),
    at("dispatcher.directory-made"),
    at("dispatcher.token-written"),
    at("dispatcher.after-submit"),
    at("dispatcher.before-end"),
    at("dispatcher.after-end"),
    when("dispatcher.before-renew", Precondition::Renewal),
    when("dispatcher.after-renew", Precondition::Renewal),
    when("dispatcher.before-unlock", Precondition::Unlock),
    when("dispatcher.after-unlock", Precondition::Unlock),
    when("dispatcher.before-last-log", Precondition::Verdict),
    when("dispatcher.after-last-log", Precondition::Verdict),
    when("dispatcher.before-cancel", Precondition::Verdict),
    when("dispatcher.after-cancel", Precondition::Verdict),
    when("dispatcher.before-stop", Precondition::Stop),
    when("dispatcher.after-stop", Precondition::Stop),
];

/// Points that only dispatch-local reaches.
pub const LOCAL: &[Point] = &[
    at("local.place-cleared"),
    at("local.notes-written"),
    at("local.before-spawn"),
    at("local.spawned"),
    at("local.executor-answered"),
];

/// Points that only dispatchers with submit commands reach.
pub const COMMAND: &[Point] = &[at("dispatcher.command-answered")];

pub const EXECUTOR: &[Point] = &[
    at("run.before-claim"),
    at("run.claimed"),
    at("run.inputs-known"),
    at("run.image-ready"),
    at("run.before-first-log"),
    at("run.after-first-log"),
    at("run.created"),
    at("run.before-running"),
    fatal("run.after-running"),
    fatal("run.started"),
    // The log is saved once more before the container is stopped.
    when("run.before-checkpoint", Precondition::Stop),
    when("run.stopping", Precondition::Stop),
    when("run.stopped", Precondition::Stop),
    fatal("run.command-ended"),
    ended("run.before-output"),
    ended("run.output-stored"),
    ended("run.after-output"),
    ended("run.after-last-log"),
    ended("run.before-final"),
    at("run.after-final"),
    at("run.before-scratch-removed"),
    at("run.before-clean"),
    at("run.before-exit-note"),
    at("run.after-exit-note"),
];

/// Points that only a crunch-run started by dispatch-local reaches.
pub const WORKER: &[Point] = &[
    at("run.lock-taken"),
    at("run.worker-spawned"),
    at("run.worker-alone"),
    at("run.lock-written"),
    when("run.image-unpacked", Precondition::ColdCache),
];

pub const API: &[Point] = &[
    at("api.lock.accepted"),
    at("api.lock.before-commit"),
    at("api.lock.before-answer"),
    when("api.unlock.before-commit", Precondition::Unlock),
    when("api.unlock.before-answer", Precondition::Unlock),
    at("api.update.before-commit"),
    at("api.update.before-answer"),
    at("api.token-create.before-commit"),
    at("api.token-create.before-answer"),
    at("api.token-delete.before-commit"),
    at("api.token-delete.before-answer"),
    at("api.block.before-rename"),
    at("api.block.after-rename"),
    when("api.start.before-tokens", Precondition::Restart),
    when("api.start.before-port", Precondition::Restart),
    when("api.start.state-made", Precondition::Restart),
];

/// Points that a server reaches only at its first start.
pub const API_FIRST_START: &[Point] = &[
    at("api.start.state-made"),
    at("api.migrate.before-commit"),
    at("api.migrate.after-commit"),
    at("api.start.before-tokens"),
    at("api.start.before-port"),
];

/// Every point there is.
pub fn all() -> impl Iterator<Item = &'static Point> {
    [
        DISPATCHER,
        LOCAL,
        COMMAND,
        EXECUTOR,
        WORKER,
        API,
        API_FIRST_START,
    ]
    .into_iter()
    .flatten()
}

//! Every fail point, by the program that dies there, with what it takes to come there.

/// What else has to happen in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Every container comes there.
    Nothing,
    /// A crunch-run that dies while the record is Locked.
    Unlock,
    /// A crunch-run that dies while the record is Running.
    Verdict,
    /// A running container whose user wants it no more.
    Stop,
    /// A running container whose token ends soon.
    Renewal,
    /// A server that starts again.
    Restart,
    /// An image that is not in the node's cache.
    ColdCache,
}

/// What the death of a crunch-run means for its container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is tried again, or goes on, and completes.
    Completes,
    /// It is Cancelled, with the reason.
    Cancelled,
    /// Its results are on the node. It completes where somebody delivers them, as dispatch-local does; else it is
    /// Cancelled.
    Delivered,
}

#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub name: &'static str,
    pub need: Need,
    /// For points of crunch-run.
    pub fate: Fate,
}

const fn at(name: &'static str) -> Point {
    when(name, Need::Nothing)
}

const fn when(name: &'static str, need: Need) -> Point {
    Point {
        name,
        need,
        fate: Fate::Completes,
    }
}

const fn fatal(name: &'static str) -> Point {
    Point {
        name,
        need: Need::Nothing,
        fate: Fate::Cancelled,
    }
}

const fn ended(name: &'static str) -> Point {
    Point {
        name,
        need: Need::Nothing,
        fate: Fate::Delivered,
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
    when("dispatcher.before-renew", Need::Renewal),
    when("dispatcher.after-renew", Need::Renewal),
    when("dispatcher.before-unlock", Need::Unlock),
    when("dispatcher.after-unlock", Need::Unlock),
    when("dispatcher.before-last-log", Need::Verdict),
    when("dispatcher.after-last-log", Need::Verdict),
    when("dispatcher.before-cancel", Need::Verdict),
    when("dispatcher.after-cancel", Need::Verdict),
    when("dispatcher.before-stop", Need::Stop),
    when("dispatcher.after-stop", Need::Stop),
];

/// Only dispatch-local comes there.
pub const LOCAL: &[Point] = &[
    at("local.place-cleared"),
    at("local.notes-written"),
    at("local.before-spawn"),
    at("local.spawned"),
    at("local.executor-answered"),
];

/// Only dispatchers that hand over to a scheduler's command come there.
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
    when("run.before-checkpoint", Need::Stop),
    when("run.stopping", Need::Stop),
    when("run.stopped", Need::Stop),
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

/// Only a crunch-run that dispatch-local started comes there.
pub const WORKER: &[Point] = &[
    at("run.lock-taken"),
    at("run.worker-spawned"),
    at("run.worker-alone"),
    at("run.lock-written"),
    when("run.image-unpacked", Need::ColdCache),
];

pub const API: &[Point] = &[
    at("api.lock.accepted"),
    at("api.lock.before-commit"),
    at("api.lock.before-answer"),
    when("api.unlock.before-commit", Need::Unlock),
    when("api.unlock.before-answer", Need::Unlock),
    at("api.update.before-commit"),
    at("api.update.before-answer"),
    at("api.token-create.before-commit"),
    at("api.token-create.before-answer"),
    at("api.token-delete.before-commit"),
    at("api.token-delete.before-answer"),
    at("api.block.before-rename"),
    at("api.block.after-rename"),
    when("api.start.before-tokens", Need::Restart),
    when("api.start.before-port", Need::Restart),
    when("api.start.state-made", Need::Restart),
];

/// Only at the first start of a server.
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

//! The comment of a job (`--comment`), by which the dispatcher finds its jobs again: written at the
//! submission, read from `squeue`.

use arvados_client::TokenUuid;
use dispatch_core::model::owner::Owner;

/// Comment of a job: the attempt, the dispatcher that submitted it, and user and project for people
/// who look at the queue.
pub fn write(attempt: &TokenUuid, instance_id: &str, owner: Option<&Owner>) -> String {
    let user = owner.and_then(Owner::user_label);
    let user = user.map(|user| format!(" user={user}"));
    let project = owner.and_then(|owner| owner.project.as_ref());
    let project = project.map(|project| format!(" project={project}"));
    let [user, project] = [user, project].map(Option::unwrap_or_default);
    format!("{attempt} {instance_id}{user}{project}")
}

/// The same as one word, because `scontrol` keeps quotes of its input.
pub fn write_without_space(
    attempt: &TokenUuid,
    instance_id: &str,
    owner: Option<&Owner>,
) -> String {
    write(attempt, instance_id, owner).replace(' ', ",")
}

/// The attempt and the dispatcher in a comment.
pub fn marks(comment: &str) -> (&str, &str) {
    let mut words = comment.split([' ', ',']);
    match (words.next(), words.next()) {
        (Some(attempt), Some(by)) => (attempt, by),
        _ => ("", ""),
    }
}

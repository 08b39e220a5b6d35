//! Scopes of attempt tokens: exactly the calls that one crunch-run needs for one container.

use crate::ids::ContainerUuid;

/// Scopes of an attempt token of the dispatcher instance `label`. The server compares `METHOD
/// /path` exactly, or by prefix if the path ends in `/`. PUT and PATCH are different methods.
///
/// The last scope is not a route, so it grants nothing. It names the dispatcher that minted the
/// token, so that two dispatchers of one user do not adopt attempts of each other after a restart.
pub fn attempt(container: &ContainerUuid, label: &str) -> Vec<String> {
    let record = format!("/arvados/v1/containers/{container}");
    vec![
        format!("GET {record}"),
        format!("PUT {record}"),
        format!("PATCH {record}"),
        format!("POST {record}/lock"),
        format!("POST {record}/unlock"),
        format!("GET {record}/auth"),
        // Create only: a token that can change collections could change those of other users.
        "POST /arvados/v1/collections".into(),
        "GET /arvados/v1/keep_services/accessible".into(),
        "GET /arvados/v1/users/current".into(),
        label_scope(label),
    ]
}

fn label_scope(label: &str) -> String {
    let is_unsafe = |c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c);
    format!("GET /dispatch/{}", label.replace(is_unsafe, "_"))
}

/// Whether the dispatcher instance `label` minted a token with these scopes.
pub fn is_labelled(scopes: &[String], label: &str) -> bool {
    scopes.contains(&label_scope(label))
}

/// The container that an attempt token with these scopes is for, if it is one.
pub fn attempt_container(scopes: &[String]) -> Option<ContainerUuid> {
    scopes.iter().find_map(|scope| {
        let uuid = scope
            .strip_prefix("POST /arvados/v1/containers/")?
            .strip_suffix("/lock")?;
        ContainerUuid::parse(uuid).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_recognised_by_its_scopes_alone() {
        let uuid = ContainerUuid::generate("zzzzz");
        let scopes = attempt(&uuid, "local on node 1");
        assert_eq!(attempt_container(&scopes), Some(uuid));
        assert!(is_labelled(&scopes, "local on node 1"));
        assert!(!is_labelled(&scopes, "local on node 2"));
        assert_eq!(attempt_container(&["all".into()]), None);
    }

    #[test]
    fn an_attempt_changes_nothing_but_its_own_container() {
        let uuid = ContainerUuid::generate("zzzzz");
        let own = format!("/arvados/v1/containers/{uuid}");
        for scope in attempt(&uuid, "l") {
            let (method, path) = scope.split_once(' ').unwrap();
            let is_new = (method, path) == ("POST", "/arvados/v1/collections");
            assert!(
                method == "GET" || path.starts_with(&own) || is_new,
                "{scope}"
            );
            assert!(!path.ends_with('/'), "{scope}");
        }
    }
}

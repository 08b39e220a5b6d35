//! What an attempt token may do: exactly what one crunch-run needs for one container, nothing else.

use crate::ids::ContainerUuid;

/// The scopes of an attempt token. The server compares `METHOD /path` strings exactly, or by prefix where the
/// path ends in `/`; PUT and PATCH are different strings to it.
pub fn attempt(container: &ContainerUuid) -> Vec<String> {
    let record = format!("/arvados/v1/containers/{container}");
    vec![
        format!("GET {record}"),
        format!("PUT {record}"),
        format!("PATCH {record}"),
        format!("POST {record}/lock"),
        format!("POST {record}/unlock"),
        format!("GET {record}/auth"),
        "POST /arvados/v1/collections".into(),
        "PUT /arvados/v1/collections/".into(),
        "PATCH /arvados/v1/collections/".into(),
        "GET /arvados/v1/keep_services/accessible".into(),
        "GET /arvados/v1/users/current".into(),
    ]
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
        assert_eq!(attempt_container(&attempt(&uuid)), Some(uuid));
        assert_eq!(attempt_container(&["all".into()]), None);
    }
}

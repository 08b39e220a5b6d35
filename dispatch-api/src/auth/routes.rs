//! The requests that an attempt token and a container's token may make, whatever their scopes say.

/// Whether an attempt token of `container` may make this request.
///
/// An attempt may create collections but not read or change them: each save of a log creates a new
/// one.
pub fn attempt_may(container: &str, method: &str, path: &str) -> bool {
    let Some(segments) = segments(path) else {
        return false;
    };
    let is_own = |uuid: &str| uuid == container;
    match (method, segments.as_slice()) {
        ("GET" | "HEAD" | "PUT" | "PATCH", ["containers", uuid]) => is_own(uuid),
        ("GET" | "HEAD", ["containers", uuid, "auth"]) => is_own(uuid),
        ("POST", ["containers", uuid, "lock" | "unlock" | "gateway_tunnel"]) => is_own(uuid),
        ("POST", ["connect", uuid, "gateway_tunnel"]) => is_own(uuid),
        ("POST", ["collections"]) => true,
        (
            "GET" | "HEAD",
            ["keep_services", "accessible"]
            | ["users", "current"]
            | ["api_client_authorizations", "current"],
        ) => true,
        _ => false,
    }
}

/// Whether a container's token may make this request: it has no access to tokens besides itself.
pub fn container_may(method: &str, path: &str) -> bool {
    match segments(path).as_deref() {
        Some(["api_client_authorizations", "current"]) => matches!(method, "GET" | "HEAD"),
        Some(["api_client_authorizations", ..]) => false,
        _ => true,
    }
}

/// The parts of a path below `/arvados/v1/`, which the routes compare.
fn segments(path: &str) -> Option<Vec<&str>> {
    let rest = path.strip_prefix("/arvados/v1/")?;
    Some(rest.split('/').filter(|part| !part.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_reaches_its_container_and_makes_collections() {
        let own = "local-dz642-0123456789abcde";
        let other = "local-dz642-edcba9876543210";
        let cases = [
            ("GET", format!("containers/{own}"), true),
            ("PATCH", format!("containers/{own}"), true),
            ("DELETE", format!("containers/{own}"), false),
            ("GET", format!("containers/{other}"), false),
            ("POST", format!("containers/{own}/lock"), true),
            ("POST", format!("containers/{own}/gateway_tunnel"), true),
            ("POST", format!("connect/{own}/gateway_tunnel"), true),
            ("POST", format!("connect/{other}/gateway_tunnel"), false),
            ("GET", format!("containers/{own}/secret_mounts"), false),
            ("GET", "containers".into(), false),
            ("POST", "collections".into(), true),
            ("GET", "collections".into(), false),
            (
                "PUT",
                "collections/local-4zz18-0123456789abcde".into(),
                false,
            ),
            (
                "POST",
                "collections/local-4zz18-0123456789abcde/trash".into(),
                false,
            ),
            ("GET", "api_client_authorizations/current".into(), true),
            ("GET", "api_client_authorizations".into(), false),
            ("POST", "api_client_authorizations".into(), false),
            ("POST", "logs".into(), false),
        ];
        for (method, path, expected) in cases {
            let path = format!("/arvados/v1/{path}");
            assert_eq!(attempt_may(own, method, &path), expected, "{method} {path}");
        }
        assert!(!attempt_may(own, "GET", "/websocket"));
    }

    #[test]
    fn a_container_reaches_no_token_but_its_own() {
        for (method, path, expected) in [
            ("GET", "api_client_authorizations/current", true),
            ("GET", "api_client_authorizations", false),
            ("GET", "/api_client_authorizations", false),
            ("GET", "api_client_authorizations/local-gj3su-0", false),
            ("PUT", "api_client_authorizations/current", false),
            ("POST", "api_client_authorizations/bulk_create", false),
            ("POST", "container_requests", true),
        ] {
            let path = format!("/arvados/v1/{path}");
            assert_eq!(container_may(method, &path), expected, "{method} {path}");
        }
    }
}

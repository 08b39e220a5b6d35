//! What an attempt token may do by the container it was signed for, whatever its scopes say.

/// Whether an attempt at `container` may make this request.
///
/// Collections are made and never looked at or changed: each save of a log is a new one.
pub fn permits(container: &str, method: &str, path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/arvados/v1/") else {
        return false;
    };
    let segments: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
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
            assert_eq!(permits(own, method, &path), expected, "{method} {path}");
        }
        assert!(!permits(own, "GET", "/websocket"));
    }
}

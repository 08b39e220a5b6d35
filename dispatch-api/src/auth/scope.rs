//! Scopes of tokens and the requests they permit.

/// Paths that every valid token may read, so that a client can inspect itself.
const ALWAYS_PERMITTED: [&str; 3] = [
    "/arvados/v1/api_client_authorizations/current",
    "/discovery/v1/apis/arvados/v1/rest",
    "/arvados/v1/config",
];

/// Whether any scope permits this request. A scope is `METHOD /path`, a prefix if it ends in `/`.
pub fn permits(scopes: &[String], method: &str, path: &str) -> bool {
    if method == "GET" && ALWAYS_PERMITTED.contains(&path) {
        return true;
    }
    scopes.iter().any(|scope| match scope.split_once(' ') {
        Some((allowed, pattern)) => {
            let method_fits = allowed == method || (allowed == "GET" && method == "HEAD");
            let is_below = pattern.ends_with('/') && path.starts_with(pattern);
            method_fits && (path == pattern || is_below)
        }
        None => scope == "all",
    })
}

/// Whether any scope permits saving a collection, and therefore storing its blocks.
pub fn may_save_collections(scopes: &[String]) -> bool {
    reach_collections(scopes, &["POST", "PUT", "PATCH"])
}

/// Whether any scope permits saving or reading a collection, and therefore reading its blocks.
pub fn may_use_collections(scopes: &[String]) -> bool {
    reach_collections(scopes, &["GET", "POST", "PUT", "PATCH"])
}

/// Whether any scope permits one of these methods for any path of collections.
fn reach_collections(scopes: &[String], methods: &[&str]) -> bool {
    const COLLECTIONS: &str = "/arvados/v1/collections";
    const BELOW: &str = "/arvados/v1/collections/";
    scopes.iter().any(|scope| match scope.split_once(' ') {
        Some((method, path)) => {
            let is_prefix = path.ends_with('/') && BELOW.starts_with(path);
            methods.contains(&method)
                && (path == COLLECTIONS || path.starts_with(BELOW) || is_prefix)
        }
        None => scope == "all",
    })
}

/// The container that these scopes permit to lock, which makes the token an attempt token.
pub fn attempt_container(scopes: &[String]) -> Option<&str> {
    scopes.iter().find_map(|scope| {
        let uuid = scope
            .strip_prefix("POST /arvados/v1/containers/")?
            .strip_suffix("/lock")?;
        (uuid.len() == 27 && !uuid.contains('/')).then_some(uuid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_exact_unless_they_end_in_a_slash() {
        let cases = [
            ("all", "DELETE", "/arvados/v1/users/x", true),
            (
                "GET /arvados/v1/containers/U",
                "GET",
                "/arvados/v1/containers/U",
                true,
            ),
            (
                "GET /arvados/v1/containers/U",
                "HEAD",
                "/arvados/v1/containers/U",
                true,
            ),
            (
                "GET /arvados/v1/containers/U",
                "GET",
                "/arvados/v1/containers/U/auth",
                false,
            ),
            (
                "GET /arvados/v1/containers/U",
                "GET",
                "/arvados/v1/containers",
                false,
            ),
            (
                "PUT /arvados/v1/collections/",
                "PUT",
                "/arvados/v1/collections/C",
                true,
            ),
            (
                "PUT /arvados/v1/collections/",
                "PATCH",
                "/arvados/v1/collections/C",
                false,
            ),
            (
                "POST /arvados/v1/collections",
                "POST",
                "/arvados/v1/collections",
                true,
            ),
            ("nonsense", "GET", "/arvados/v1/config", true),
            ("nonsense", "GET", "/arvados/v1/users/current", false),
        ];
        for (scope, method, path, expected) in cases {
            assert_eq!(
                permits(&[scope.to_owned()], method, path),
                expected,
                "{scope}: {method} {path}"
            );
        }
        assert!(!permits(&[], "GET", "/arvados/v1/containers"));
    }

    #[test]
    fn scopes_for_collections_permit_their_blocks() {
        for (scope, saves, uses) in [
            ("all", true, true),
            ("POST /arvados/v1/collections", true, true),
            ("PUT /arvados/v1/collections/", true, true),
            ("PUT /arvados/v1/", true, true),
            ("GET /arvados/v1/collections", false, true),
            ("GET /", false, true),
            ("GET /arvados/v1/collections_x", false, false),
            ("POST /arvados/v1/links", false, false),
            ("GET /arvados/v1/links/", false, false),
        ] {
            let scopes = [scope.to_owned()];
            let found = (may_save_collections(&scopes), may_use_collections(&scopes));
            assert_eq!(found, (saves, uses), "{scope}");
        }
        assert!(!may_save_collections(&[]) && !may_use_collections(&[]));
    }

    #[test]
    fn an_attempt_token_is_known_by_its_lock_scope() {
        let uuid = "local-dz642-0123456789abcde";
        let scopes = vec![
            format!("GET /arvados/v1/containers/{uuid}"),
            format!("POST /arvados/v1/containers/{uuid}/lock"),
        ];
        assert_eq!(attempt_container(&scopes), Some(uuid));
        assert_eq!(attempt_container(&scopes[..1]), None);
        assert_eq!(attempt_container(&["all".into()]), None);
    }
}

//! What a token's scopes allow.

/// Paths every valid token may read, so that a client can find out about itself.
const ALWAYS: [&str; 3] = [
    "/arvados/v1/api_client_authorizations/current",
    "/discovery/v1/apis/arvados/v1/rest",
    "/arvados/v1/config",
];

/// Does any scope permit this request? A scope is `METHOD /path`, a prefix if it ends in `/`.
pub fn permits(scopes: &[String], method: &str, path: &str) -> bool {
    if method == "GET" && ALWAYS.contains(&path) {
        return true;
    }
    scopes.iter().any(|scope| {
        if scope == "all" {
            return true;
        }
        let Some((allowed, pattern)) = scope.split_once(' ') else {
            return false;
        };
        let method_fits = allowed == method || (allowed == "GET" && method == "HEAD");
        let path_fits = if pattern.ends_with('/') {
            path.starts_with(pattern)
        } else {
            path == pattern
        };
        method_fits && path_fits
    })
}

/// Whether any scope lets its token save a collection, and so store the blocks of one.
pub fn may_save(scopes: &[String]) -> bool {
    const COLLECTIONS: &str = "/arvados/v1/collections";
    scopes.iter().any(|scope| {
        scope == "all"
            || ["POST", "PUT", "PATCH"].iter().any(|method| {
                scope
                    .strip_prefix(method)
                    .and_then(|path| path.strip_prefix(' '))
                    .is_some_and(|path| path.starts_with(COLLECTIONS))
            })
    })
}

/// The container whose lock these scopes permit: they belong to an attempt token.
pub fn attempt_of(scopes: &[String]) -> Option<&str> {
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
    fn only_who_may_save_collections_may_store_blocks() {
        for (scope, expected) in [
            ("all", true),
            ("POST /arvados/v1/collections", true),
            ("PUT /arvados/v1/collections/", true),
            ("GET /arvados/v1/collections", false),
            ("POST /arvados/v1/links", false),
        ] {
            assert_eq!(may_save(&[scope.to_owned()]), expected, "{scope}");
        }
        assert!(!may_save(&[]));
    }

    #[test]
    fn an_attempt_token_is_known_by_its_lock_scope() {
        let uuid = "local-dz642-0123456789abcde";
        let scopes = vec![
            format!("GET /arvados/v1/containers/{uuid}"),
            format!("POST /arvados/v1/containers/{uuid}/lock"),
        ];
        assert_eq!(attempt_of(&scopes), Some(uuid));
        assert_eq!(attempt_of(&scopes[..1]), None);
        assert_eq!(attempt_of(&["all".into()]), None);
    }
}

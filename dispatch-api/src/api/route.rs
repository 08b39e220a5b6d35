//! One route below `/arvados/v1`: method, path and handler.

use super::call::{Call, Reply};
use crate::error::Result;

/// Handles a call; the text is the part of the path that stands for `{}`.
pub type Handler = fn(&Call, &str) -> Result<Reply>;

pub struct Route {
    pub method: &'static str,
    /// The path after `/arvados/v1/`, with at most one `{}` for any single part.
    pub path: &'static str,
    pub handler: Handler,
}

impl Route {
    pub const fn new(method: &'static str, path: &'static str, handler: Handler) -> Route {
        Route {
            method,
            path,
            handler,
        }
    }

    /// Whether only this server has the route, as an extension of Arvados.
    pub fn is_extension(&self) -> bool {
        self.path.contains("/bulk_") || self.path.ends_with("/collect_garbage")
    }

    /// The part of the path that stands for `{}`, empty without one; `None` if the route does not
    /// match.
    pub fn matches<'a>(&self, method: &str, segments: &[&'a str]) -> Option<&'a str> {
        if self.method != method || self.path.split('/').count() != segments.len() {
            return None;
        }
        let mut parameter = "";
        for (wanted, given) in self.path.split('/').zip(segments) {
            match wanted {
                "{}" if !given.is_empty() => parameter = given,
                _ if wanted == *given => {}
                _ => return None,
            }
        }
        Some(parameter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_matches_its_method_and_path_only() {
        let route = Route::new("POST", "containers/{}/lock", |_, _| unreachable!());
        assert_eq!(
            route.matches("POST", &["containers", "u", "lock"]),
            Some("u")
        );
        assert_eq!(route.matches("GET", &["containers", "u", "lock"]), None);
        assert_eq!(route.matches("POST", &["containers", "u"]), None);
        assert_eq!(route.matches("POST", &["containers", "", "lock"]), None);
        assert_eq!(route.matches("POST", &["containers", "u", "unlock"]), None);
    }
}

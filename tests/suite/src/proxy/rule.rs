//! Faults of the proxy, and the rules that select the requests they apply to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::Value;

/// Selects the requests that a fault applies to.
#[derive(Debug, Clone)]
pub struct Rule {
    method: Method,
    path: String,
    skip: u32,
    times: Option<u32>,
    having: Option<String>,
    /// The fault.
    pub fault: Fault,
}

/// Whether a failed request takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The request is not forwarded.
    None,
    /// The request takes effect.
    Done,
}

/// Makes an answer.
pub type Respond = Arc<dyn Fn(&http::request::Parts) -> http::Response<Vec<u8>> + Send + Sync>;

/// Changes an answer.
pub type Change = Arc<dyn Fn(Value) -> Value + Send + Sync>;

/// How a request fails.
#[derive(Clone)]
pub enum Fault {
    /// The connection ends instead of an answer.
    Cut(Effect),
    /// The connection ends in the middle of the answer.
    CutMidway,
    /// This status instead of the server's answer.
    Answer(StatusCode, Effect),
    /// Status 429 with `Retry-After` of this many seconds.
    TooMany(u64),
    /// The first half of the answer, as if it were complete.
    Half,
    /// The answer byte by byte, with this pause between two bytes.
    Trickle(Duration),
    /// The request is forwarded after this delay.
    Late(Duration),
    /// The server's answer, changed.
    Changed(Change),
    /// The answer of this function instead of the server's.
    Instead(Respond),
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Cut(effect) => write!(f, "Cut({effect:?})"),
            Fault::CutMidway => f.write_str("CutMidway"),
            Fault::Answer(status, effect) => write!(f, "Answer({status}, {effect:?})"),
            Fault::TooMany(seconds) => write!(f, "TooMany({seconds})"),
            Fault::Half => f.write_str("Half"),
            Fault::Trickle(pause) => write!(f, "Trickle({pause:?})"),
            Fault::Late(time) => write!(f, "Late({time:?})"),
            Fault::Changed(_) => f.write_str("Changed"),
            Fault::Instead(_) => f.write_str("Instead"),
        }
    }
}

impl Fault {
    /// A changed answer.
    pub fn changed(change: impl Fn(Value) -> Value + Send + Sync + 'static) -> Self {
        Self::Changed(Arc::new(change))
    }

    /// Another server's answer.
    pub fn instead(
        respond: impl Fn(&http::request::Parts) -> http::Response<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        Self::Instead(Arc::new(respond))
    }
}

impl Rule {
    /// Every `method` request of `path` below `/arvados/v1/`; `*` stands for one part of the path.
    pub fn every(method: Method, path: &str, fault: Fault) -> Self {
        Self {
            method,
            path: path.to_owned(),
            skip: 0,
            times: None,
            having: None,
            fault,
        }
    }

    /// The next `times` such requests.
    pub fn next(times: u32, method: Method, path: &str, fault: Fault) -> Self {
        Self {
            times: Some(times),
            ..Self::every(method, path, fault)
        }
    }

    /// Lets this many requests through first.
    pub fn after(self, requests: u32) -> Self {
        Self {
            skip: requests,
            ..self
        }
    }

    /// Only requests with `text` in their decoded query.
    pub fn having(self, text: &str) -> Self {
        Self {
            having: Some(text.to_owned()),
            ..self
        }
    }

    /// Whether the fault applies to this request. Counts the request.
    pub(super) fn applies(&mut self, method: &Method, path: &str, query: &str) -> bool {
        let meant = self.method == *method
            && self.times != Some(0)
            && is_like(&self.path, path)
            && self.having.as_ref().is_none_or(|text| query.contains(text));
        if !meant {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times = self.times.map(|left| left - 1);
        true
    }
}

/// Whether `path` is `/arvados/v1/` and `pattern`, or `pattern` itself.
pub(super) fn is_like(pattern: &str, path: &str) -> bool {
    if pattern.starts_with('/') {
        return pattern == path;
    }
    let Some(path) = path.strip_prefix("/arvados/v1/") else {
        return false;
    };
    let (mut parts, mut wanted) = (path.split('/'), pattern.split('/'));
    loop {
        match (parts.next(), wanted.next()) {
            (None, None) => return true,
            (Some(part), Some(want)) if want == "*" || want == part => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_part_by_part() {
        for (pattern, path, like) in [
            ("containers", "/arvados/v1/containers", true),
            ("containers", "/arvados/v1/containers/x", false),
            ("containers/*/lock", "/arvados/v1/containers/x/lock", true),
            ("containers/*", "/arvados/v1/containers/x/lock", false),
            ("containers", "/metrics", false),
            ("/metrics", "/metrics", true),
        ] {
            assert_eq!(is_like(pattern, path), like, "{pattern} {path}");
        }
    }

    #[test]
    fn so_many_after_so_many() {
        let mut rule = Rule::next(2, Method::GET, "containers", Fault::Half).after(1);
        let applied: Vec<bool> = (0..5)
            .map(|_| rule.applies(&Method::GET, "/arvados/v1/containers", ""))
            .collect();
        assert_eq!(applied, [false, true, true, false, false]);
    }
}

//! How long each part of the attempt took.

use std::time::Instant;

use serde_json::{Map, Value};

#[derive(Debug)]
pub struct Phases {
    began: Instant,
    last: Instant,
    seconds: Vec<(&'static str, f64)>,
}

impl Phases {
    pub fn begin() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            last: now,
            seconds: Vec::new(),
        }
    }

    /// A part ends here, and the next begins.
    pub fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        self.seconds.push((name, (now - self.last).as_secs_f64()));
        self.last = now;
    }

    pub fn seconds_of(&self, name: &str) -> Option<f64> {
        self.seconds
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, seconds)| *seconds)
    }

    pub fn json(&self) -> Value {
        let parts: Map<String, Value> = self
            .seconds
            .iter()
            .map(|(name, seconds)| ((*name).to_owned(), rounded(*seconds)))
            .collect();
        parts.into()
    }

    /// One line for the log.
    pub fn line(&self) -> String {
        let parts: Vec<String> = self
            .seconds
            .iter()
            .map(|(name, seconds)| format!("{name} {:.1}", seconds * 1e3))
            .collect();
        format!(
            "Milliseconds spent: {}; {:.1} in all",
            parts.join(", "),
            self.began.elapsed().as_secs_f64() * 1e3
        )
    }
}

fn rounded(seconds: f64) -> Value {
    ((seconds * 1e6).round() / 1e6).into()
}

//! Measures how long each phase of an attempt took.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Map, Value};

#[derive(Debug)]
pub struct PhaseTimings {
    began: Instant,
    ended: Mutex<Vec<(&'static str, Instant)>>,
}

impl PhaseTimings {
    pub fn begin() -> Self {
        Self {
            began: Instant::now(),
            ended: Mutex::default(),
        }
    }

    /// Ends a phase and begins the next one.
    pub fn end(&self, name: &'static str) {
        self.ended.lock().push((name, Instant::now()));
    }

    /// Time since the first phase began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn seconds_of(&self, name: &str) -> Option<f64> {
        self.seconds()
            .into_iter()
            .find(|(n, _)| *n == name)
            .map(|(_, seconds)| seconds)
    }

    fn seconds(&self) -> Vec<(&'static str, f64)> {
        let mut began = self.began;
        self.ended
            .lock()
            .iter()
            .map(|(name, ended)| {
                let seconds = (*ended - began).as_secs_f64();
                began = *ended;
                (*name, seconds)
            })
            .collect()
    }

    pub fn json(&self) -> Value {
        let parts: Map<String, Value> = self
            .seconds()
            .into_iter()
            .map(|(name, seconds)| (name.to_owned(), rounded(seconds)))
            .collect();
        parts.into()
    }

    /// One line for the log.
    pub fn line(&self) -> String {
        let parts: Vec<String> = self
            .seconds()
            .into_iter()
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

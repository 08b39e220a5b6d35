//! What the check of a dispatcher's set-up found, and how that is shown to people and to programs; beside
//! are the parts that dispatchers have in common.

mod api;
mod machine;
pub mod submit_test;

use std::borrow::Cow;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::lines::one_line;

pub use api::look as api;
pub use machine::{Mends, commands, directory, set_up};

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Containers run, though not as well as they could, or something could not be checked.
    Warn,
    /// Containers cannot run.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was looked at, in a word or two.
    pub what: Cow<'static, str>,
    /// What was found.
    pub finding: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(what: &'static str, finding: impl AsRef<str>) -> Self {
        Self::new(Level::Ok, what, finding.as_ref(), None)
    }

    /// Not as well as it could be.
    pub fn warn(what: &'static str, finding: impl AsRef<str>, mend: impl AsRef<str>) -> Self {
        Self::new(Level::Warn, what, finding.as_ref(), Some(mend.as_ref()))
    }

    /// Containers cannot run.
    pub fn fail(what: &'static str, finding: impl AsRef<str>, mend: impl AsRef<str>) -> Self {
        Self::new(Level::Fail, what, finding.as_ref(), Some(mend.as_ref()))
    }

    fn new(
        level: Level,
        what: impl Into<Cow<'static, str>>,
        finding: &str,
        mend: Option<&str>,
    ) -> Self {
        Self {
            level,
            what: what.into(),
            finding: one_line(finding),
            mend: mend.map(one_line),
        }
    }
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Nothing fails.
    pub ok: bool,
    /// In the order in which they were looked at.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Of these findings.
    pub fn new(findings: Vec<Finding>) -> Self {
        Self {
            ok: findings.iter().all(|finding| finding.level != Level::Fail),
            findings,
        }
    }

    /// One page.
    pub fn text(&self) -> String {
        let mut page = String::new();
        for finding in &self.findings {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Warn => "warn",
                Level::Fail => "FAIL",
            };
            // A string never refuses to be written to.
            let _ = writeln!(page, "{level:<4}  {}: {}", finding.what, finding.finding);
            if let Some(mend) = &finding.mend {
                let _ = writeln!(page, "      mend: {mend}");
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_line_for_each_and_what_to_do_below() {
        let report = Report::new(vec![
            Finding::ok("squeue", "answers"),
            Finding::warn("clock", "2 minutes\nbehind", "start chrony"),
        ]);
        assert!(report.ok);
        assert_eq!(
            report.text(),
            "ok    squeue: answers\nwarn  clock: 2 minutes behind\n      mend: start chrony\n"
        );
        let failed = Report::new(vec![Finding::fail("sbatch", "is not there", "install it")]);
        assert!(!failed.ok && failed.text().starts_with("FAIL  sbatch"));
        let json = serde_json::to_value(&failed).unwrap();
        assert_eq!(json["findings"][0]["level"], "fail");
    }
}

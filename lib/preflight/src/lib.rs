//! Findings of a `check` command, as text and, by serde, as JSON. [`server`] has the checks that
//! crunch-run and dispatchers share; the rest is pure.

pub mod server;

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The set-up is correct.
    Ok,
    /// Containers run, but not optimally, or something could not be checked.
    Warn,
    /// Containers cannot run.
    Fail,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub level: Level,
    /// Subject of the check, in a word or two.
    pub what: String,
    pub finding: String,
    /// How to fix it.
    #[serde(rename = "mend", skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// A finding without problem.
    pub fn ok(what: impl Into<String>, finding: impl AsRef<str>) -> Self {
        Self::new(Level::Ok, what, finding, None)
    }

    /// A finding that needs attention but lets containers run.
    pub fn warn(
        what: impl Into<String>,
        finding: impl AsRef<str>,
        remedy: impl AsRef<str>,
    ) -> Self {
        Self::new(Level::Warn, what, finding, Some(remedy.as_ref()))
    }

    /// A finding that keeps containers from running.
    pub fn fail(
        what: impl Into<String>,
        finding: impl AsRef<str>,
        remedy: impl AsRef<str>,
    ) -> Self {
        Self::new(Level::Fail, what, finding, Some(remedy.as_ref()))
    }

    pub fn new(
        level: Level,
        what: impl Into<String>,
        finding: impl AsRef<str>,
        remedy: Option<&str>,
    ) -> Self {
        Self {
            level,
            what: what.into(),
            finding: one_line(finding.as_ref()),
            remedy: remedy.map(one_line),
        }
    }
}

/// What a finding is about, in a word or two.
#[derive(Debug, Clone, Copy)]
pub struct Subject(pub &'static str);

impl Subject {
    pub fn ok(self, finding: impl AsRef<str>) -> Finding {
        Finding::ok(self.0, finding)
    }

    pub fn warn(self, finding: impl AsRef<str>, remedy: impl AsRef<str>) -> Finding {
        Finding::warn(self.0, finding, remedy)
    }

    pub fn fail(self, finding: impl AsRef<str>, remedy: impl AsRef<str>) -> Finding {
        Finding::fail(self.0, finding, remedy)
    }
}

/// The words of `text`. Whitespace, line breaks and control characters separate them, so that no
/// terminal escape remains.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    words.filter(|word| !word.is_empty())
}

/// All words of `text` in one line. Messages of other programs may span several lines.
pub fn one_line(text: &str) -> String {
    words(text).collect::<Vec<_>>().join(" ")
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether no finding is a failure.
    pub ok: bool,
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn new(findings: Vec<Finding>) -> Self {
        Self {
            ok: findings.iter().all(|finding| finding.level != Level::Fail),
            findings,
        }
    }

    /// Removes a secret that a message may repeat.
    pub fn without(mut self, secret: &str) -> Self {
        if !secret.is_empty() {
            for finding in &mut self.findings {
                finding.finding = finding.finding.replace(secret, "…");
                finding.remedy = finding.remedy.take().map(|text| text.replace(secret, "…"));
            }
        }
        self
    }

    /// One page of text: a line for each finding, with its remedy below.
    pub fn text(&self) -> String {
        let mut page = String::new();
        // Writing to a string never fails.
        for finding in &self.findings {
            let (level, what) = (finding.level.word(), &finding.what);
            let _ = writeln!(page, "{level:<4}  {what}: {}", finding.finding);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(page, "      mend: {remedy}");
            }
        }
        page
    }
}

/// The report of `crunch-run check` on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub host: String,
    pub uid: u32,
    /// Version of crunch-run.
    pub version: String,
    /// GPUs that the scheduler granted to the job that crunch-run checks in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub granted_gpus: Vec<String>,
    /// The engine that containers get; `None` if none works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineReport>,
    #[serde(flatten)]
    pub report: Report,
}

/// The engine that containers get on a node, and who enforces their limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineReport {
    /// Name of the engine, as in `--runtime-engine`.
    pub name: String,
    pub memory: Enforcement,
    pub cpus: Enforcement,
    pub processes: Enforcement,
}

/// Who enforces a limit of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// The kernel, by a control group of the container or of its job.
    Kernel,
    /// crunch-run, which measures the usage and kills the container above the limit.
    Watched,
    /// Nothing.
    Nothing,
    /// A word of a later version.
    #[serde(other)]
    Unknown,
}

impl NodeReport {
    /// The report as text, with a summary at the end.
    pub fn text(&self) -> String {
        let mut page = self.report.text();
        let findings = &self.report.findings;
        let count = |level: Level| findings.iter().filter(|f| f.level == level).count();
        let _ = writeln!(
            page,
            "crunch-run {} as uid {} on {}: {} ok, {} warn, {} FAIL",
            self.version,
            self.uid,
            self.host,
            count(Level::Ok),
            count(Level::Warn),
            count(Level::Fail)
        );
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(findings: Vec<Finding>) -> NodeReport {
        NodeReport {
            host: "node1".to_owned(),
            uid: 0,
            version: "1.0".to_owned(),
            granted_gpus: Vec::new(),
            engine: None,
            report: Report::new(findings),
        }
    }

    fn some() -> Vec<Finding> {
        vec![
            Finding::ok("kernel", "6.1"),
            Finding::warn("clock", "2 minutes\nbehind", "start chrony"),
            Finding::fail("cache", "/c is not\t writable", "chown it"),
        ]
    }

    #[test]
    fn a_page_has_a_line_for_each_and_what_to_do_below() {
        assert_eq!(
            node(some()).text(),
            "ok    kernel: 6.1\n\
             warn  clock: 2 minutes behind\n      mend: start chrony\n\
             FAIL  cache: /c is not writable\n      mend: chown it\n\
             crunch-run 1.0 as uid 0 on node1: 1 ok, 1 warn, 1 FAIL\n"
        );
    }

    #[test]
    fn programs_get_the_same_as_json() {
        for (findings, ok) in [(some(), false), (some()[..2].to_vec(), true)] {
            let line = serde_json::to_string(&node(findings)).unwrap();
            let start = format!(r#"{{"host":"node1","uid":0,"version":"1.0","ok":{ok},"#);
            assert!(line.starts_with(&start), "{line}");
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            let first = serde_json::json!({"level": "ok", "what": "kernel", "finding": "6.1"});
            assert_eq!(value["findings"][0], first);
            assert_eq!(value["findings"][1]["mend"], "start chrony");
            assert_eq!(line.lines().count(), 1);
        }
    }

    #[test]
    fn a_secret_that_came_in_does_not_come_out() {
        let report = Report::new(vec![Finding::fail(
            "token",
            "no token v2/x/5ecret",
            "not 5ecret",
        )]);
        let kept = report.clone().without("");
        assert_eq!(kept, report);
        let clean = report.without("5ecret");
        assert_eq!(clean.findings[0].finding, "no token v2/x/…");
        assert!(!clean.text().contains("5ecret"));
    }

    #[test]
    fn a_line_stays_one() {
        assert_eq!(one_line(" a\n b\r\n\tc\u{1b}[31m "), "a b c [31m");
        assert_eq!(one_line("\n"), "");
    }
}

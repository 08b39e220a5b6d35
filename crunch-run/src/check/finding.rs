//! What a check found, and how that is shown to people and to programs. Pure.

use std::fmt::Write;

use serde::Serialize;

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Containers run, though not as well as they could, or something could not be checked.
    Warn,
    /// Containers cannot run here.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    /// What was looked at, in a word or two.
    pub what: String,
    pub finding: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Finding {
    pub fn ok(what: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(Level::Ok, what, finding, None)
    }

    pub fn warn(
        what: impl Into<String>,
        finding: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self::new(Level::Warn, what, finding, Some(mend.into()))
    }

    pub fn fail(
        what: impl Into<String>,
        finding: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self::new(Level::Fail, what, finding, Some(mend.into()))
    }

    pub fn new(
        level: Level,
        what: impl Into<String>,
        finding: impl Into<String>,
        mend: Option<String>,
    ) -> Self {
        Self {
            level,
            what: what.into(),
            finding: one_line(&finding.into()),
            mend: mend.map(|text| one_line(&text)),
        }
    }
}

/// Messages of other programs may have several lines, and worse.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
        if !word.is_empty() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    line
}

/// All findings of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub host: String,
    pub uid: u32,
    pub version: String,
    /// Nothing fails.
    pub ok: bool,
    pub findings: Vec<Finding>,
}

impl Report {
    /// About this process's node and user.
    pub fn new(findings: Vec<Finding>) -> Self {
        Self {
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            uid: rustix::process::geteuid().as_raw(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ok: findings.iter().all(|finding| finding.level != Level::Fail),
            findings,
        }
    }

    /// A server or a program might repeat a secret in its message.
    pub fn without(mut self, secret: &str) -> Self {
        if !secret.is_empty() {
            for finding in &mut self.findings {
                finding.finding = finding.finding.replace(secret, "…");
                finding.mend = finding.mend.take().map(|mend| mend.replace(secret, "…"));
            }
        }
        self
    }

    /// One page.
    pub fn text(&self) -> String {
        let mut page = String::new();
        // A string never refuses to be written to.
        for finding in &self.findings {
            let (level, what) = (finding.level.word(), &finding.what);
            let _ = writeln!(page, "{level:<4}  {what}: {}", finding.finding);
            if let Some(mend) = &finding.mend {
                let _ = writeln!(page, "      mend: {mend}");
            }
        }
        let count = |level: Level| self.findings.iter().filter(|f| f.level == level).count();
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

    /// One object on one line.
    pub fn json(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        let ok = findings.iter().all(|finding| finding.level != Level::Fail);
        Report {
            host: "node1".to_owned(),
            uid: 0,
            version: "1.0".to_owned(),
            ok,
            findings,
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
            report(some()).text(),
            "ok    kernel: 6.1\n\
             warn  clock: 2 minutes behind\n      mend: start chrony\n\
             FAIL  cache: /c is not writable\n      mend: chown it\n\
             crunch-run 1.0 as uid 0 on node1: 1 ok, 1 warn, 1 FAIL\n"
        );
    }

    #[test]
    fn programs_get_the_same_as_json() {
        for (findings, ok) in [(some(), false), (some()[..2].to_vec(), true)] {
            let line = report(findings.clone()).json();
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["ok"], ok);
            let first = serde_json::json!({"level": "ok", "what": "kernel", "finding": "6.1"});
            assert_eq!(value["findings"][0], first);
            assert_eq!(value["findings"][1]["mend"], "start chrony");
            assert_eq!(line.lines().count(), 1);
        }
    }

    #[test]
    fn a_secret_that_came_in_does_not_come_out() {
        let findings = vec![Finding::fail("token", "no token v2/x/5ecret", "not 5ecret")];
        let report = report(findings);
        let kept = report.clone().without("");
        assert_eq!(kept, report);
        let clean = report.without("5ecret");
        assert_eq!(clean.findings[0].finding, "no token v2/x/…");
        assert!(!clean.text().contains("5ecret") && !clean.json().contains("5ecret"));
    }
}

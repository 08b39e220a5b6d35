//! Reads the ads that HTCondor's commands print with `-json`, for dispatch-condor and
//! dispatch-overseer. One odd attribute costs no more than itself: admins and pools add and change
//! attributes, and an expression that cannot be evaluated becomes `null`.
//!
//! Format: condor_q(1), `-json`. Without an ad, the commands print nothing.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::scheduler::command::CommandOutput;

/// One ad, without the attributes that are undefined.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassAd(Map<String, Value>);

/// Whether a command with exit status 0 may not have asked. It prints nothing if there is no ad, so
/// only stderr distinguishes that from a failure. A line that begins with WARNING tells of none.
pub fn has_no_answer(answer: &CommandOutput) -> bool {
    const FAILURES: [&str; 3] = ["Failed", "Error", "ERROR"];
    let tells_failure = |line: &str| {
        let is_warning = line.trim_start().starts_with("WARNING");
        !is_warning && FAILURES.iter().any(|word| line.contains(word))
    };
    let stdout = answer.stdout.trim();
    let has_list = list_in(stdout).is_some();
    !has_list && (!stdout.is_empty() || answer.stderr.lines().any(tells_failure))
}

/// The list of ads, without the greetings of a site around it.
fn list_in(stdout: &str) -> Option<&str> {
    let begin = match stdout.starts_with('[') {
        true => 0,
        false => stdout.find("\n[")? + 1,
    };
    let end = stdout.rfind("\n]").map_or(stdout.len(), |end| end + 2);
    stdout.get(begin..end)
}

/// All ads of an answer. An answer that was cut is an error.
pub fn parse(answer: &str) -> Result<Vec<ClassAd>, serde_json::Error> {
    let answer = answer.trim();
    if answer.is_empty() {
        return Ok(Vec::new());
    }
    // A line that is no text may be a damaged ad.
    let list = list_in(answer).filter(|_| !answer.contains('\u{fffd}'));
    let answer = list.unwrap_or(answer);
    let ads: Vec<Map<String, Value>> = serde_json::from_str(answer)?;
    let defined = |mut ad: Map<String, Value>| {
        ad.retain(|_, value| !value.is_null());
        ClassAd(ad)
    };
    Ok(ads.into_iter().map(defined).collect())
}

impl ClassAd {
    /// The ad as `T`, unless an attribute has another type.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, serde_json::Error> {
        serde_json::from_value(Value::Object(self.0))
    }

    /// The ad as `T`, whose attributes have defaults. One that has another type counts as
    /// undefined.
    pub fn read_leniently<T: DeserializeOwned + Default>(mut self) -> T {
        if let Ok(whole) = self.clone().read() {
            return whole;
        }
        let is_readable = |name: &String, value: &Value| {
            let alone = Map::from_iter([(name.clone(), value.clone())]);
            ClassAd(alone).read::<T>().is_ok()
        };
        self.0.retain(|name, value| is_readable(name, value));
        self.read().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "PascalCase")]
    struct Ad {
        cluster_id: i64,
        hold_reason: String,
    }

    #[test]
    fn an_odd_attribute_costs_no_more_than_itself() {
        for (answer, cluster_id, hold_reason) in [
            (r#"[{"ClusterId": 7, "HoldReason": "why"}]"#, 7, "why"),
            (r#"[{"ClusterId": 7, "HoldReason": null}]"#, 7, ""),
            (r#"[{"ClusterId": 7, "HoldReason": 3}]"#, 7, ""),
            (
                r#"[{"ClusterId": "/Expr(x)/", "HoldReason": "why"}]"#,
                0,
                "why",
            ),
            (r#"[{"ClusterId": [], "HoldReason": {}, "Else": 1}]"#, 0, ""),
        ] {
            let mut ads = parse(answer).unwrap();
            let hold_reason = hold_reason.to_owned();
            let expected = Ad {
                cluster_id,
                hold_reason,
            };
            assert_eq!(ads.remove(0).read_leniently::<Ad>(), expected, "{answer}");
        }
    }

    #[test]
    fn an_answer_without_ads_is_told_from_a_failure() {
        for (stdout, stderr, expected) in [
            ("", "", false),
            (
                "",
                "-- Failed to fetch ads from: <127.0.0.1:9618> : host",
                true,
            ),
            ("", "\nError: communication error", true),
            ("", "ERROR: unknown host", true),
            ("", "condor_q: Error: communication error", true),
            (
                "",
                "WARNING: Config source error in /etc/condor: Error",
                false,
            ),
            ("[]", "Error: communication error", false),
        ] {
            let answer = CommandOutput {
                status: std::process::ExitStatus::default(),
                stdout: stdout.to_owned(),
                stderr: stderr.to_owned(),
            };
            assert_eq!(has_no_answer(&answer), expected, "{stderr}");
        }
    }

    #[test]
    fn a_cut_answer_is_an_error() {
        let whole = r#"[{"ClusterId": 7}, {"ClusterId": 8}]"#;
        assert_eq!(parse(whole).unwrap().len(), 2);
        assert_eq!(parse(" \n").unwrap(), []);
        for end in 1..whole.len() {
            assert!(parse(&whole[..end]).is_err(), "{end}");
        }
        assert!(parse("-- Failed to fetch ads").is_err());
        assert!(parse("[null]").is_err());
    }
}

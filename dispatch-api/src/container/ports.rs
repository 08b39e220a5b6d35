//! Rules for the published ports of a container request.

use serde_json::Value;

use crate::error::{ApiError, Result};

/// Validates the ports of a request that is being committed.
pub fn check(published: &Value) -> Result<()> {
    let mut problems = Vec::new();
    for (port, entry) in published.as_object().into_iter().flatten() {
        check_one(port, entry, &mut problems);
    }
    ApiError::reject_all(problems)
}

fn check_one(port: &str, entry: &Value, problems: &mut Vec<String>) {
    let mut problem = |what: String| problems.push(format!("Published ports entry {port} {what}"));
    if !port.parse::<u16>().is_ok_and(|number| number > 0) {
        problem("must be a decimal port number in the range 1-65535".into());
        return;
    }
    let Some(fields) = entry.as_object() else {
        problem(format!("must be an object: {entry}"));
        return;
    };
    let known = ["access", "label", "initial_path"];
    for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
        problem(format!("has invalid key: {name:?}"));
    }
    if !matches!(entry["access"].as_str(), Some("private" | "public")) {
        problem(format!(
            "'access' must be one of 'public' or 'private' but was: {}",
            entry["access"]
        ));
    }
    if entry["label"].as_str().is_none_or(str::is_empty) {
        problem(format!(
            "'label' must be a string that is not empty but was: {}",
            entry["label"]
        ));
    }
    if !entry["initial_path"].is_string() {
        problem(format!(
            "'initial_path' must be a string but was: {}",
            entry["initial_path"]
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_rule_names_what_breaks_it() {
        let entry = json!({"access": "private", "label": "web", "initial_path": ""});
        check(&json!({"8080": entry})).unwrap();
        check(&json!({})).unwrap();
        let with = |name: &str, value: Value| {
            let mut changed = entry.clone();
            changed[name] = value;
            json!({"8080": changed})
        };
        for (ports, word) in [
            (json!({"http": entry}), "http"),
            (json!({"0": entry}), "1-65535"),
            (json!({"80": "web"}), "must be an object"),
            (with("access", json!("open")), "'access'"),
            (with("label", json!("")), "'label'"),
            (with("initial_path", Value::Null), "'initial_path'"),
            (with("base_url", json!("")), "base_url"),
        ] {
            let error = check(&ports).unwrap_err().to_string();
            assert!(error.contains(word), "{ports}: {error}");
        }
    }
}

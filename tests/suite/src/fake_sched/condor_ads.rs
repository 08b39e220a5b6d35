//! HTCondor's job ads: constraints, the JSON they are shown in, and the quoting of submit
//! descriptions.

use serde_json::{Map, Value};

/// A conjunction of comparisons, like `A == "x" && JobStatus != 1`; anything else is not
/// understood.
#[derive(Debug)]
pub struct Constraint(Vec<(String, Sign, Value)>);

#[derive(Debug, Clone, Copy)]
enum Sign {
    Equals,
    Differs,
    IsNot,
}

impl Constraint {
    /// Parses an expression; the error has HTCondor's text.
    pub fn parse(text: &str) -> Result<Self, String> {
        text.split("&&")
            .map(comparison)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether an ad meets the expression. A missing attribute equals nothing, and is not (`=!=`)
    /// anything.
    pub fn meets(&self, ad: &Map<String, Value>) -> bool {
        self.0.iter().all(|(name, sign, value)| {
            let found = ad.get(name);
            match sign {
                Sign::Equals => found == Some(value),
                Sign::Differs => found.is_some_and(|found| found != value),
                Sign::IsNot => found != Some(value),
            }
        })
    }
}

fn comparison(text: &str) -> Result<(String, Sign, Value), String> {
    let text = text.trim().trim_matches(['(', ')']);
    let wrong = || format!("Invalid constraint expression: {text}");
    let signs = [
        ("=!=", Sign::IsNot),
        ("==", Sign::Equals),
        ("!=", Sign::Differs),
    ];
    let found = signs.iter().find_map(|(sign, meaning)| {
        let (name, value) = text.split_once(sign)?;
        Some((name, *meaning, value))
    });
    let (name, sign, value) = found.ok_or_else(wrong)?;
    let name = name.trim();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(wrong());
    }
    Ok((name.to_owned(), sign, literal(value).ok_or_else(wrong)?))
}

/// A number, a truth value or a text in double quotes.
pub fn literal(text: &str) -> Option<Value> {
    match text.trim() {
        "true" | "True" | "TRUE" => Some(true.into()),
        "false" | "False" | "FALSE" => Some(false.into()),
        text => serde_json::from_str(text).ok(),
    }
}

/// The ads with only the requested attributes, as condor_q writes them; `none` if there are no ads.
pub fn json(ads: &[&Map<String, Value>], attributes: Option<&str>, none: &str) -> String {
    let wanted: Option<Vec<&str>> = attributes.map(|list| list.split(',').map(str::trim).collect());
    let shown: Vec<String> = ads
        .iter()
        .map(|ad| {
            let ad: Map<String, Value> = ad
                .iter()
                .filter(|(name, _)| {
                    wanted
                        .as_ref()
                        .is_none_or(|names| names.iter().any(|n| n.eq_ignore_ascii_case(name)))
                })
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            let rows: Vec<String> = ad
                .iter()
                .map(|(name, value)| format!("  \"{name}\": {value}"))
                .collect();
            format!("{{\n{}\n}}\n", rows.join(",\n"))
        })
        .collect();
    match shown.is_empty() {
        true => none.to_owned(),
        false => format!("[\n{}]\n", shown.join(",\n")),
    }
}

/// Splits the "new" syntax: the list in double quotes, with `""` for one of them; words with blanks
/// in single quotes, with `''` for one of them.
pub fn words(text: &str) -> Option<Vec<String>> {
    let text = text.trim().strip_prefix('"')?.strip_suffix('"')?;
    let text = text.replace("\"\"", "\"");
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' if quoted && letters.peek() == Some(&'\'') => {
                letters.next();
                word.get_or_insert_default().push('\'');
            }
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' | '\t' if !quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    (!quoted).then_some(words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_come_out_as_they_were_quoted() {
        let quoted = r#""'--it''s ""so""' plain '' 'a b'""#;
        assert_eq!(
            words(quoted).unwrap(),
            ["--it's \"so\"", "plain", "", "a b"]
        );
        assert_eq!(words("no quotes"), None);
    }

    #[test]
    fn a_constraint_is_met_or_not_understood() {
        let ad = json!({"A": "x", "JobStatus": 2});
        let ad = ad.as_object().unwrap();
        for (text, met) in [
            ("A == \"x\"", true),
            ("A == \"y\"", false),
            ("A == \"x\" && JobStatus != 1", true),
            ("B == 1", false),
            ("B != 1", false),
            ("B =!= true", true),
            ("A =!= \"x\"", false),
        ] {
            assert_eq!(Constraint::parse(text).unwrap().meets(ad), met, "{text}");
        }
        assert!(Constraint::parse("regexp(\"x\", A)").is_err());
    }
}

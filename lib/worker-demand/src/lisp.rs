//! The demand file in Lisp, the resource file of CL-MW: a sequence of forms `(:keyword value)`.

use std::collections::BTreeMap;

use crate::demand::{Demand, UNIVERSAL_EPOCH};
use crate::error::{Problem, ReadError};
use crate::sexpr::{self, Node, Position, Sexpr};
use crate::value::{
    ARGUMENTS, EXECUTABLE, INTERVAL, MEMBER, NEEDED, STATUS, TIMESTAMP, UncheckedDemand,
};

/// Writes the file. The slaves of CL-MW read it with `read` of Lisp.
pub fn to_lisp(demand: &Demand) -> String {
    let worker = &demand.worker;
    let forms = [
        (
            "Is there more to do?",
            STATUS,
            format!(":{}", demand.status.as_str()),
        ),
        (
            "Written at, in seconds since 1900",
            TIMESTAMP,
            (demand.written_at + UNIVERSAL_EPOCH).to_string(),
        ),
        ("By", MEMBER, quoted(&demand.member_id)),
        (
            "Seconds until it is written again",
            INTERVAL,
            demand.update_interval.to_string(),
        ),
        (
            "Workers wanted beside those at work",
            NEEDED,
            demand.needed.to_string(),
        ),
        (
            "A worker: program and shared libraries",
            EXECUTABLE,
            format!("({} {})", quoted(&worker.program), list(&worker.libraries)),
        ),
        ("Its arguments", ARGUMENTS, list(&worker.arguments)),
    ];
    forms
        .map(|(comment, key, value)| format!(";; {comment}\n(:{key} {value})\n"))
        .concat()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

fn list(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("({})", words.join(" "))
}

/// Reads the file.
pub fn read(text: &str) -> Result<Demand, ReadError> {
    let nodes = sexpr::parse(text)
        .map_err(|(position, problem)| ReadError::At(position, problem.into()))?;
    let mut forms: BTreeMap<String, (Position, Vec<Node>)> = BTreeMap::new();
    for node in nodes {
        let position = node.position;
        let (key, values) = form(node)?;
        if let Some((first, _)) = forms.get(&key) {
            let line = first.line;
            return Err(ReadError::At(position, Problem::Duplicate { key, line }));
        }
        forms.insert(key, (position, values));
    }
    let mut positions = BTreeMap::new();
    let mut take = |key: &'static str| -> Result<Node, ReadError> {
        let (position, mut values) = forms.remove(key).ok_or(ReadError::Missing(key))?;
        positions.insert(key, position);
        match (values.pop(), values.len()) {
            (Some(value), 0) => Ok(value),
            (value, before) => {
                let count = before + usize::from(value.is_some());
                let problem = Problem::ValueCount(key.to_owned(), count);
                Err(ReadError::At(position, problem))
            }
        }
    };
    let computation_status = keyword(STATUS, take(STATUS)?)?;
    let timestamp = number(TIMESTAMP, take(TIMESTAMP)?)?;
    let member_id = string(MEMBER, "a text", take(MEMBER)?)?;
    let update_interval = number(INTERVAL, take(INTERVAL)?)?;
    let slaves_needed = number(NEEDED, take(NEEDED)?)?;
    let (slave_executable, slave_libraries) = executable(take(EXECUTABLE)?)?;
    let raw = UncheckedDemand {
        computation_status,
        timestamp,
        member_id,
        update_interval,
        slaves_needed,
        slave_executable,
        slave_libraries,
        slave_arguments: strings(ARGUMENTS, "a list of texts", take(ARGUMENTS)?)?,
    };
    raw.validate().map_err(|(key, problem)| {
        let problem = Problem::Value { key, problem };
        match positions.get(key) {
            Some(position) => ReadError::At(*position, problem),
            None => ReadError::Missing(key),
        }
    })
}

/// Keyword and values of a form. The values of unknown keywords are not looked at.
fn form(node: Node) -> Result<(String, Vec<Node>), ReadError> {
    let kind = node.sexpr.kind();
    let wrong = |what| Err(ReadError::At(node.position, Problem::NotAForm(what)));
    let Sexpr::List(list) = node.sexpr else {
        return wrong(kind);
    };
    let mut list = list.into_iter();
    match list.next().map(|first| first.sexpr) {
        Some(Sexpr::Keyword(key)) => Ok((key, list.collect())),
        Some(_) => wrong("a list that begins otherwise"),
        None => wrong("an empty list"),
    }
}

fn wrong_type(key: &'static str, expected: &'static str, node: &Node) -> ReadError {
    let found = node.sexpr.kind();
    let problem = Problem::Type {
        key,
        expected,
        found,
    };
    ReadError::At(node.position, problem)
}

fn number(key: &'static str, node: Node) -> Result<u64, ReadError> {
    match node.sexpr {
        Sexpr::Number(number) => Ok(number),
        _ => Err(wrong_type(key, "a whole number", &node)),
    }
}

fn keyword(key: &'static str, node: Node) -> Result<String, ReadError> {
    match node.sexpr {
        Sexpr::Keyword(word) => Ok(word),
        _ => Err(wrong_type(key, ":in-progress or :finished", &node)),
    }
}

fn string(key: &'static str, expected: &'static str, node: Node) -> Result<String, ReadError> {
    match node.sexpr {
        Sexpr::Text(text) => Ok(text),
        _ => Err(wrong_type(key, expected, &node)),
    }
}

fn strings(
    key: &'static str,
    expected: &'static str,
    node: Node,
) -> Result<Vec<String>, ReadError> {
    match node.sexpr {
        Sexpr::List(list) => list
            .into_iter()
            .map(|word| string(key, expected, word))
            .collect(),
        _ => Err(wrong_type(key, expected, &node)),
    }
}

/// `("/program" ("/library" …))`. The list of libraries is optional.
fn executable(node: Node) -> Result<(String, Vec<String>), ReadError> {
    const EXPECTED: &str = "a list of the program and of a list of its libraries";
    let wrong = wrong_type(EXECUTABLE, EXPECTED, &node);
    let Sexpr::List(list) = node.sexpr else {
        return Err(wrong);
    };
    let mut parts = list.into_iter();
    let (Some(program), libraries, None) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong);
    };
    let program = string(EXECUTABLE, EXPECTED, program)?;
    let libraries = libraries.map(|node| strings(EXECUTABLE, EXPECTED, node));
    Ok((program, libraries.transpose()?.unwrap_or_default()))
}

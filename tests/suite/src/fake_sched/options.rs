//! Parses a command line as strictly as the real programs: an unknown option is an error.

use super::Reply;

/// A parsed command line.
#[derive(Debug, Default)]
pub struct Options {
    /// Options in their call, with their values.
    pub given: Vec<(String, String)>,
    /// The rest.
    pub words: Vec<String>,
}

impl Options {
    /// The last value of an option.
    pub fn value(&self, name: &str) -> Option<&str> {
        let found = self.given.iter().rev().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether an option is there.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }
}

/// Slurm's style: `--name`, `--name=value`, `--name value`, `-x value`, `-xvalue`. In `known`,
/// names that take a value end with `=`, and `x:name=` has a short form.
pub fn slurm(program: &str, arguments: &[String], known: &[&str]) -> Result<Options, Reply> {
    let unknown = |what: String| {
        Err(Reply::failed(
            1,
            &format!("{program}: {what}\nTry \"{program} --help\" for more information"),
        ))
    };
    let lookup = |short: Option<char>, long: &str| {
        known.iter().find_map(|entry| {
            let (letter, name) = match entry.split_once(':') {
                Some((letter, name)) => (letter.chars().next(), name),
                None => (None, *entry),
            };
            let plain = name.trim_end_matches('=');
            let meant = match short {
                Some(_) => letter == short,
                None => plain == long,
            };
            meant.then_some((plain, name.ends_with('=')))
        })
    };
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (found, inline) = if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            (lookup(None, name), value)
        } else if let Some(letter) = argument.strip_prefix('-').and_then(|a| a.chars().next()) {
            let value = argument[1 + letter.len_utf8()..].to_owned();
            (
                lookup(Some(letter), ""),
                Some(value).filter(|v| !v.is_empty()),
            )
        } else {
            options.words.push(argument.clone());
            continue;
        };
        match found {
            None => return unknown(format!("unrecognized option '{argument}'")),
            Some((name, true)) => match inline.or_else(|| rest.next().cloned()) {
                Some(value) => options.given.push((name.to_owned(), value)),
                None => return unknown(format!("option '{argument}' requires an argument")),
            },
            Some((name, false)) => options
                .given
                .push((name.to_owned(), inline.unwrap_or_default())),
        }
    }
    Ok(options)
}

/// HTCondor's style: `-name`, and `-name value` for those of `known` that end with `=`.
pub fn condor(program: &str, arguments: &[String], known: &[&str]) -> Result<Options, Reply> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let name = match argument.strip_prefix('-') {
            Some(name) if !name.is_empty() => name,
            _ => {
                options.words.push(argument.clone());
                continue;
            }
        };
        let error = |what: &str| Reply::failed(1, &format!("{program}: Error: {what} -{name}"));
        let found = known
            .iter()
            .find(|entry| entry.trim_end_matches('=') == name);
        match found {
            None => return Err(error("unrecognized argument")),
            Some(entry) if entry.ends_with('=') => match rest.next() {
                Some(value) => options.given.push((name.to_owned(), value.clone())),
                None => return Err(error("missing value of the argument")),
            },
            Some(_) => options.given.push((name.to_owned(), String::new())),
        }
    }
    Ok(options)
}

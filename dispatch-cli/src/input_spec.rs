//! Parses `--input NAME=WHAT` into a path in the container and the source of its content.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

use arvados_client::{CollectionUuid, Pdh};

/// Directory in the container for inputs with a relative name.
const INPUTS: &str = "/input";

/// Why an input or output path is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputSpecError {
    #[error(
        "{0:?} is not an input: write NAME=JOB, NAME=COLLECTION, either with :PATH, NAME=FILE or NAME=DIRECTORY"
    )]
    NoEquals(String),
    #[error(
        "{0:?} cannot be the name of an input: use a name like data or an absolute path like /ref, without . and .. in it"
    )]
    BadName(String),
    #[error("{0:?} cannot be a path in a collection: leave . and .. out")]
    BadPath(String),
    #[error("input {0} is given twice: give each its own name")]
    Duplicate(String),
    #[error("input {0} would hide the output path {1}: use another name or another --output-path")]
    HidesOutput(String, String),
    #[error(
        "{0:?} cannot be the output path: name a directory below /, such as /out, without . and .. in it"
    )]
    BadOutputPath(String),
    #[error("{0} cannot be the output path: it would hide that directory of the image; use /out")]
    HidesImage(String),
}

/// Directories of an image that its programs need.
const NEEDED_IN_IMAGE: [&str; 10] = [
    "bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr", "usr/bin",
];

/// Source of the content of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A stored collection.
    Collection(CollectionSpec),
    /// A file or directory of this machine.
    Local(PathBuf),
}

/// A collection, or a file or directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionSpec {
    /// uuid or portable data hash.
    pub collection: String,
    /// Path in the collection; empty for all of it.
    pub path: String,
}

/// One `--input`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Absolute path in the container.
    pub target: String,
    pub source: Source,
}

impl FromStr for InputSpec {
    type Err = InputSpecError;

    fn from_str(text: &str) -> Result<Self, InputSpecError> {
        let (name, what) = text
            .split_once('=')
            .filter(|(name, what)| !name.is_empty() && !what.is_empty())
            .ok_or_else(|| InputSpecError::NoEquals(text.to_owned()))?;
        Ok(Self {
            target: target(name).ok_or_else(|| InputSpecError::BadName(name.to_owned()))?,
            source: Source::parse(what)?,
        })
    }
}

impl InputSpec {
    /// The name for users: the target without `/input/`.
    pub fn name(&self) -> &str {
        let below = self.target.strip_prefix(INPUTS);
        let below = below.filter(|below| below.starts_with('/'));
        below.unwrap_or(&self.target).trim_start_matches('/')
    }
}

impl Source {
    /// A collection if the text begins with a uuid or portable data hash, else a local path.
    pub fn parse(text: &str) -> Result<Self, InputSpecError> {
        Ok(match CollectionSpec::parse(text)? {
            Some(spec) => Source::Collection(spec),
            None => Source::Local(PathBuf::from(text)),
        })
    }
}

impl CollectionSpec {
    /// Parses `UUID`, `PDH`, either with `:PATH`, and `keep:UUID/PATH` as other tools print it.
    /// `None` for any other text.
    pub fn parse(text: &str) -> Result<Option<Self>, InputSpecError> {
        let text = text.strip_prefix("keep:").unwrap_or(text);
        let end = text.find([':', '/']).unwrap_or(text.len());
        let collection = &text[..end];
        if CollectionUuid::parse(collection).is_err() && Pdh::parse(collection).is_err() {
            return Ok(None);
        }
        let path = clean(text[end..].trim_start_matches(':'))
            .ok_or_else(|| InputSpecError::BadPath(text[end..].to_owned()))?;
        Ok(Some(Self {
            collection: collection.to_owned(),
            path,
        }))
    }
}

/// The normalized output path.
pub fn output_path(text: &str) -> Result<String, InputSpecError> {
    let bad = || InputSpecError::BadOutputPath(text.to_owned());
    let path = clean(text).filter(|p| text.starts_with('/') && !p.is_empty());
    let path = path.ok_or_else(bad)?;
    match NEEDED_IN_IMAGE.contains(&path.as_str()) {
        true => Err(InputSpecError::HidesImage(format!("/{path}"))),
        false => Ok(format!("/{path}")),
    }
}

/// Checks that no target appears twice and none hides the output path.
pub fn check_targets(inputs: &[InputSpec], output: &str) -> Result<(), InputSpecError> {
    let mut targets = BTreeSet::new();
    for input in inputs {
        let target = &input.target;
        if !targets.insert(target) {
            return Err(InputSpecError::Duplicate(target.clone()));
        }
        let above = output
            .strip_prefix(target.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if above {
            return Err(InputSpecError::HidesOutput(
                target.clone(),
                output.to_owned(),
            ));
        }
    }
    Ok(())
}

fn target(name: &str) -> Option<String> {
    let path = clean(name).filter(|path| !path.is_empty())?;
    Some(match name.starts_with('/') {
        true => format!("/{path}"),
        false => format!("{INPUTS}/{path}"),
    })
}

/// Removes leading, doubled and trailing slashes. `None` if a part is `.`, `..` or has a control
/// character.
pub fn clean(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let bad = |part: &&str| matches!(*part, "." | "..") || part.chars().any(char::is_control);
    (!parts.iter().any(bad)).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "zzzzz-4zz18-0123456789abcde";
    const PDH: &str = "d41d8cd98f00b204e9800998ecf8427e+0";

    fn collection(collection: &str, path: &str) -> Source {
        Source::Collection(CollectionSpec {
            collection: collection.into(),
            path: path.into(),
        })
    }

    #[test]
    fn inputs_name_a_place_and_a_thing() {
        let local = |path: &str| Source::Local(path.into());
        let rows = [
            (format!("a={UUID}"), "/input/a", collection(UUID, "")),
            (format!("a={UUID}:x/y"), "/input/a", collection(UUID, "x/y")),
            (
                format!("a={UUID}:/x//y/"),
                "/input/a",
                collection(UUID, "x/y"),
            ),
            (format!("a=keep:{PDH}/x"), "/input/a", collection(PDH, "x")),
            (format!("/ref={PDH}"), "/ref", collection(PDH, "")),
            ("a/b=data.txt".into(), "/input/a/b", local("data.txt")),
            ("a=dir/k=v".into(), "/input/a", local("dir/k=v")),
            ("a=c:d".into(), "/input/a", local("c:d")),
        ];
        for (text, target, source) in rows {
            let got: InputSpec = text.parse().unwrap();
            assert_eq!(
                (got.target.as_str(), got.source),
                (target, source),
                "{text}"
            );
        }
    }

    #[test]
    fn an_input_is_called_as_people_wrote_it() {
        for (text, name) in [
            ("a=f", "a"),
            ("a/b=f", "a/b"),
            ("/ref/a=f", "ref/a"),
            ("/inputs=f", "inputs"),
        ] {
            let input: InputSpec = text.parse().unwrap();
            assert_eq!(input.name(), name, "{text}");
        }
    }

    #[test]
    fn bad_inputs_are_refused_with_the_reason() {
        let no_equals = |t: &str| InputSpecError::NoEquals(t.into());
        let bad_name = |t: &str| InputSpecError::BadName(t.into());
        let rows = [
            ("data", no_equals("data")),
            ("=x", no_equals("=x")),
            ("a=", no_equals("a=")),
            ("../a=x", bad_name("../a")),
            ("/=x", bad_name("/")),
            ("a\n=x", bad_name("a\n")),
        ];
        for (text, error) in rows {
            assert_eq!(text.parse::<InputSpec>(), Err(error), "{text}");
        }
        assert!(matches!(
            format!("a={UUID}:../x").parse::<InputSpec>(),
            Err(InputSpecError::BadPath(_))
        ));
    }

    #[test]
    fn targets_neither_meet_nor_hide_the_output() {
        let inputs = |names: &[&str]| -> Vec<InputSpec> {
            names
                .iter()
                .map(|n| format!("{n}=f").parse().unwrap())
                .collect()
        };
        assert!(check_targets(&inputs(&["a", "b", "/out/ref", "/output"]), "/out").is_ok());
        let twice = check_targets(&inputs(&["a", "/input/a"]), "/out").unwrap_err();
        assert_eq!(twice, InputSpecError::Duplicate("/input/a".into()));
        for hiding in ["/out", "/var"] {
            let error = check_targets(&inputs(&[hiding]), "/var/out").is_err();
            assert_eq!(error, hiding == "/var");
        }
    }

    #[test]
    fn the_output_path_is_absolute() {
        assert_eq!(output_path("/out/").unwrap(), "/out");
        for bad in ["out", "/", "", "/a/../b", "/bin", "/usr/bin/"] {
            assert!(output_path(bad).is_err(), "{bad}");
        }
    }
}

//! Parses the command line up to the subcommand.

use std::ffi::OsString;
use std::str::FromStr;

use arvados_client::ContainerUuid;
use rustix::process::Signal;

use crate::flags::normalise;

/// A subcommand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subcommand {
    /// `crunch-run cache …`
    Cache,
    /// `crunch-run check …`
    Check,
    /// `crunch-run resume DIR`
    Resume,
    /// `crunch-run man`: the manual page.
    Man,
    /// `crunch-run --list`: the containers being run on this node, a line each.
    List,
    /// `crunch-run --kill SIGNAL UUID`
    Kill(Signal, ContainerUuid),
}

/// Returns the subcommand in the arguments, the program's name first. `None` means to run a
/// container. An error is a sentence.
///
/// Other flags beside `--list` and `--kill` are ignored, because upstream's dispatchers pass some.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Subcommand>, String> {
    let words: Vec<String> = normalise(arguments)
        .into_iter()
        .skip(1)
        .take_while(|word| word != "--")
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match words.first().map(String::as_str) {
        Some("cache") => return Ok(Some(Subcommand::Cache)),
        Some("check") => return Ok(Some(Subcommand::Check)),
        Some("resume") => return Ok(Some(Subcommand::Resume)),
        Some("man") => return Ok(Some(Subcommand::Man)),
        _ => {}
    }
    if words
        .iter()
        .any(|word| word == "--list" || word == "--list=true")
    {
        return Ok(Some(Subcommand::List));
    }
    let Some(at) = words
        .iter()
        .position(|word| word == "--kill" || word.starts_with("--kill="))
    else {
        return Ok(None);
    };
    let (number, rest) = match words[at].strip_prefix("--kill=") {
        Some(number) => (number, &words[at + 1..]),
        None => match words[at + 1..].split_first() {
            Some((number, rest)) => (number.as_str(), rest),
            None => return Err("--kill needs the number of a signal, and a container".into()),
        },
    };
    let signal = signal(number).ok_or_else(|| {
        format!("--kill {number:?}: give the number of a signal, like 15, or its name, like TERM")
    })?;
    let uuid = rest.last().map(String::as_str).unwrap_or_default();
    let uuid = ContainerUuid::parse(uuid)
        .map_err(|_| format!("--kill {number}: {uuid:?} is not a container's uuid"))?;
    Ok(Some(Subcommand::Kill(signal, uuid)))
}

fn signal(text: &str) -> Option<Signal> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let named = nix::sys::signal::Signal::from_str(&format!("SIG{name}"));
    let number = named.map(|signal| signal as i32).ok();
    Signal::from_named_raw(number.or_else(|| text.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subcommand(line: &str) -> Result<Option<Subcommand>, String> {
        let words = format!("crunch-run {line}");
        parse(words.split(' ').map(OsString::from))
    }

    #[test]
    fn upstreams_ways_to_ask_are_understood() {
        let uuid = "zzzzz-dz642-0123456789abcde";
        let kill = |signal| Subcommand::Kill(signal, ContainerUuid::parse(uuid).unwrap());
        for (line, expected) in [
            ("--list".to_owned(), Some(Subcommand::List)),
            ("-list -stdin-prices".to_owned(), Some(Subcommand::List)),
            (format!("--kill 15 {uuid}"), Some(kill(Signal::TERM))),
            (format!("-kill=9 {uuid}"), Some(kill(Signal::KILL))),
            (
                format!("--kill TERM --detach {uuid}"),
                Some(kill(Signal::TERM)),
            ),
            ("cache gc".to_owned(), Some(Subcommand::Cache)),
            ("check -offline".to_owned(), Some(Subcommand::Check)),
            ("resume dir".to_owned(), Some(Subcommand::Resume)),
            ("man".to_owned(), Some(Subcommand::Man)),
            (format!("--detach {uuid}"), None),
            (format!("-- {uuid} --list"), None),
        ] {
            assert_eq!(subcommand(&line), Ok(expected), "{line}");
        }
        for line in [
            "--kill",
            "--kill 15",
            "--kill soon zzzzz-dz642-0123456789abcde",
        ] {
            assert!(
                subcommand(line).unwrap_err().starts_with("--kill"),
                "{line}"
            );
        }
    }
}

//! `PROGRAM man`: the manual page, from the same definition as the program's help.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory, Parser};
use clap_mangen::Man;

use crate::program;

/// What the help of a program says of it: it needs none of the other flags.
pub const HELP: &str = "`man` as the only word prints the manual page; with --dir DIR it is written there, as are those of the commands.";

/// Print the manual page, or write it and those of the commands into a directory
#[derive(Debug, Parser)]
#[command(name = "man")]
struct Flags {
    /// Write them here
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Does it if it is asked for, before the program's flags are looked at.
pub fn asked<F: CommandFactory>() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first()? != "man" {
        return None;
    }
    let flags = Flags::try_parse_from(words);
    let written = match flags
        .unwrap_or_else(|error| program::refuse_flags(error))
        .dir
    {
        Some(dir) => pages(F::command(), &dir),
        None => Man::new(F::command())
            .render(&mut io::stdout().lock())
            .and_then(|()| io::stdout().lock().flush()),
    };
    Some(match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => program::refuse(&format!("the manual page cannot be written: {error}")),
    })
}

fn pages(command: Command, dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    // `help` is no page.
    clap_mangen::generate_to(command.disable_help_subcommand(true), dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "some", after_help = HELP)]
    struct Some {
        /// Where
        #[arg(long)]
        place: String,
        #[command(subcommand)]
        errand: Option<Errand>,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Errand {
        /// Look whether it is there
        Look,
    }

    #[test]
    fn each_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("man1");
        pages(Some::command(), &place).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(&place)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["some-look.1", "some.1"]);
        let page = std::fs::read_to_string(place.join("some.1")).unwrap();
        assert!(
            page.contains("Where") && page.contains("some\\-look(1)"),
            "{page}"
        );
    }
}

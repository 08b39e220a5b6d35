//! `PROGRAM man`: prints or writes the manual page. Input: the program's clap definition.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory, Parser};
use clap_mangen::Man;

use crate::service;

/// Text below the flags in `--help`.
pub fn help() -> String {
    format!(
        "{}\n\n`man` as the only argument prints the manual page. `man --dir DIR` writes it and those of the commands to DIR.",
        units::HELP
    )
}

/// Print the manual page, or write it and those of the commands into a directory
#[derive(Debug, Parser)]
#[command(name = "man")]
struct Flags {
    /// Directory to write the manual pages to
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints or writes the pages if the first argument is `man`. Runs before the program's flags are
/// parsed.
pub fn run_if_requested<F: CommandFactory>() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first()? != "man" {
        return None;
    }
    let flags = Flags::try_parse_from(words);
    let written = match flags
        .unwrap_or_else(|error| service::exit_usage_error(error))
        .dir
    {
        Some(dir) => pages(F::command(), &dir),
        None => Man::new(F::command())
            .render(&mut io::stdout().lock())
            .and_then(|()| io::stdout().lock().flush()),
    };
    Some(match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            service::exit_config_error(&format!("the manual page cannot be written: {error}"))
        }
    })
}

fn pages(command: Command, dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    // `help` gets no page.
    clap_mangen::generate_to(command.disable_help_subcommand(true), dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "some", after_help = help())]
    struct Some {
        /// Where
        #[arg(long)]
        place: String,
        #[command(subcommand)]
        subcommand: Option<SampleCommand>,
    }

    #[derive(Debug, clap::Subcommand)]
    enum SampleCommand {
        /// Look whether it is there
        Look,
    }

    #[test]
    fn each_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let man_dir = dir.path().join("man1");
        pages(Some::command(), &man_dir).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(&man_dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["some-look.1", "some.1"]);
        let page = std::fs::read_to_string(man_dir.join("some.1")).unwrap();
        assert!(
            page.contains("Where") && page.contains("some\\-look(1)"),
            "{page}"
        );
    }
}

//! `dispatch completions` and `dispatch man`: what shells and readers get of the definition of the
//! command line; and the answer to a shell that completes a word.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{self, Stdio};

use clap::{Args, Command};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use clap_mangen::Man as Page;

use crate::error::CliError;
use crate::printer::Output;

/// Set by the script of the shell, to the name of the shell.
const VARIABLE: &str = "_DISPATCH_COMPLETE";

/// Print the script with which a shell completes commands, flags, jobs and images
///
/// For bash, in ~/.bashrc: source <(dispatch completions bash)
#[derive(Debug, Args)]
pub struct Completions {
    /// Shell that completes the command line
    pub shell: Shell,
}

/// Print the man page, or write the man pages of all commands into a directory
#[derive(Debug, Args)]
pub struct Man {
    /// Directory to write dispatch.1, dispatch-submit.1 and so on to
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Answers the shell and ends the process, if a shell asks. To be called before any thread starts,
/// because it unsets the variable.
pub fn answer_shell(definition: fn() -> Command) {
    CompleteEnv::with_factory(definition)
        .var(VARIABLE)
        .complete();
}

/// The script that makes a shell ask the `dispatch` of its PATH.
fn script(shell: Shell) -> Result<Vec<u8>, CliError> {
    let mut script = Vec::new();
    if let Some(shell) = Shells::builtins().completer(&shell.to_string()) {
        shell
            .write_registration(VARIABLE, "dispatch", "dispatch", "dispatch", &mut script)
            .map_err(CliError::Output)?;
    }
    Ok(script)
}

pub fn completions(args: &Completions, out: Output) -> Result<(), CliError> {
    out.bytes(&script(args.shell)?)
}

pub fn man(args: &Man, command: Command, out: Output) -> Result<(), CliError> {
    if let Some(dir) = &args.dir {
        let failed = CliError::write(dir);
        std::fs::create_dir_all(dir).map_err(&failed)?;
        return clap_mangen::generate_to(command, dir).map_err(failed);
    }
    let mut page = Vec::new();
    Page::new(command)
        .render(&mut page)
        .map_err(CliError::Output)?;
    match io::stdout().is_terminal() && show_page(&page) {
        true => Ok(()),
        false => out.bytes(&page),
    }
}

/// Shows the page with the program `man`. False without it.
fn show_page(page: &[u8]) -> bool {
    let shown = process::Command::new("man")
        .args(["-l", "-"])
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut man) = shown else {
        return false;
    };
    if let Some(mut input) = man.stdin.take() {
        // Who leaves the pager early does not read it all.
        let _ = input.write_all(page);
    }
    man.wait().is_ok_and(|status| status.success())
}

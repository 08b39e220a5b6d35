//! `dispatch completions` and `dispatch man`: generated from the definition of the command line.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{self, Stdio};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man as Page;

use crate::error::CliError;
use crate::printer::Output;

/// Print the completions for a shell
///
/// For bash: dispatch completions bash > /etc/bash_completion.d/dispatch
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

pub fn completions(args: &Completions, mut command: Command, out: Output) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "dispatch", &mut script);
    out.bytes(&script)
}

pub fn man(args: &Man, command: Command, out: Output) -> Result<(), CliError> {
    if let Some(dir) = &args.dir {
        let failed = |source| CliError::Write {
            path: dir.clone(),
            source,
        };
        std::fs::create_dir_all(dir).map_err(failed)?;
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

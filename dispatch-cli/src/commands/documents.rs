//! `dispatch completions` and `dispatch man`: made from the definition of the command line.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man as Page;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::Output;

/// Print the completions for a shell
///
/// For bash: dispatch completions bash > /etc/bash_completion.d/dispatch
#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell
    pub shell: Shell,
}

/// Print the man page, or write those of all commands into a directory
#[derive(Debug, Args)]
pub struct Man {
    /// Write dispatch.1, dispatch-submit.1 and so on here
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

pub fn completions(args: &Completions, out: Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dispatch", &mut script);
    out.bytes(&script)
}

pub fn man(args: &Man, out: Output) -> Result<(), Failure> {
    if let Some(dir) = &args.dir {
        let failed = |source| Failure::Write {
            path: dir.clone(),
            source,
        };
        std::fs::create_dir_all(dir).map_err(failed)?;
        return clap_mangen::generate_to(Cli::command(), dir).map_err(failed);
    }
    let mut page = Vec::new();
    Page::new(Cli::command())
        .render(&mut page)
        .map_err(Failure::Output)?;
    out.bytes(&page)
}

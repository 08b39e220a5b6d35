//! The command line. Every flag is defined once; help, man pages and completions come from it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands;
use crate::exit;

/// Run containers from a queue: on this workstation, or on any Arvados server.
///
/// 'dispatch up' starts everything on this machine; 'dispatch submit' hands in a job; 'dispatch get' fetches what it
/// made. All commands but 'up' work as well against a real Arvados cluster.
#[derive(Debug, Parser)]
#[command(name = "dispatch", version, after_long_help = exit::TABLE, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command understands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Directory of 'dispatch up' [default: $DISPATCH_STATE, or $XDG_STATE_HOME/dispatch]
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// The directory that is named by the flag or else by the environment.
    pub fn state(&self) -> Option<PathBuf> {
        // Set but empty is unset, as for every variable.
        let set = std::env::var_os("DISPATCH_STATE").filter(|dir| !dir.is_empty());
        self.state.clone().or_else(|| set.map(PathBuf::from))
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Up(commands::up::Up),
    Submit(Box<commands::submit::Submit>),
    #[command(visible_alias = "ls")]
    List(commands::list::List),
    Show(commands::show::Show),
    Logs(commands::logs::Logs),
    Wait(commands::wait::Wait),
    Get(commands::get::Get),
    Put(commands::put::Put),
    Kill(commands::kill::Kill),
    Info(commands::info::Info),
    Image(commands::image::Image),
    Explain(commands::explain::Explain),
    Demand(commands::demand::Demand),
    Env(commands::env::Env),
    Completions(commands::documents::Completions),
    Man(commands::documents::Man),
}

impl Command {
    /// Whether its exit status is the job's.
    pub fn waits(&self) -> bool {
        match self {
            Command::Wait(_) => true,
            Command::Submit(submit) => submit.wait,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_says_what_it_does() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{} {}",
                    command.get_name(),
                    arg.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}

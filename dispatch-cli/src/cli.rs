//! The command line: the subcommands, whose flags are in `commands/`, and the flags of all. Help,
//! man pages and completions are generated from it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands;
use crate::exit;
use crate::selection::Selection;
use crate::state_dir;

/// Run containers from a queue: on this workstation, or on any Arvados server.
///
/// 'dispatch up' starts everything on this machine, 'dispatch submit' submits a job, 'dispatch get'
/// fetches its output. All commands but 'up' also work with a real Arvados cluster.
#[derive(Debug, Parser)]
#[command(name = "dispatch", version, after_long_help = format!("{}\n\n{}", exit::STATUS_HELP, units::HELP), max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// State directory of 'dispatch up' [default: $DISPATCH_STATE_DIR, or $XDG_STATE_HOME/dispatch]
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Act as the administrator, who sees and changes the jobs of all users: for the account that
    /// runs 'dispatch up'
    #[arg(long, global = true)]
    pub admin: bool,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// The state directory named by the flag, else by the environment.
    pub fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir
            .clone()
            .or_else(state_dir::named_in_environment)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Up(commands::up::Up),
    Submit(Box<commands::submit::Submit>),
    Run(Box<commands::run_job::Run>),
    #[command(visible_alias = "ls")]
    List(commands::list::List),
    Show(commands::show::Show),
    Logs(commands::logs::Logs),
    Wait(commands::wait::Wait),
    Get(commands::get::Get),
    Put(commands::put::Put),
    /// Stop jobs, wherever they are: queued, being started, or running
    ///
    /// Sets the priority to 0. A running job gets SIGTERM first, and SIGKILL if it does not end
    /// within 10 seconds, or as long as the site gives it (--stop-grace of crunch-run). Its output
    /// is not saved.
    Kill(Selection),
    /// Keep jobs from starting, until 'dispatch release'
    ///
    /// Sets their priority to 0. Jobs that run already, or are being started, are left alone.
    Hold(Selection),
    /// Let held jobs start, with the priority that they had
    ///
    /// A job that was killed does not start again: 'dispatch retry' submits it once more.
    Release(Selection),
    Priority(commands::priority::Priority),
    /// Submit ended jobs once more, as new jobs
    ///
    /// Each new job has the command, image, inputs and limits of the old one. Secret mounts are not
    /// copied: nobody can read them. --failed, --name and --all leave out jobs that were submitted
    /// once more before.
    Retry(Selection),
    /// Remove ended jobs, with their outputs and logs
    ///
    /// Outputs and logs go to the trash, where the server keeps them for two weeks. 'dispatch gc'
    /// frees their space earlier. A job that has not ended is left alone, and so is a job whose
    /// output another one still needs.
    Rm(Selection),
    Gc(commands::gc::Gc),
    /// Show the server, the queue, and what is free on this machine
    Info,
    Image(commands::image::Image),
    Collection(commands::collection::Collections),
    Explain(commands::explain::Explain),
    Demand(commands::demand::Demand),
    User(commands::user::Users),
    Token(commands::token::Tokens),
    /// Print the environment of the running 'dispatch up' for other programs:
    /// eval "$(dispatch env)"
    ///
    /// ARVADOS_API_TOKEN is that of an ordinary user. SSL_CERT_FILE names the certificates of this
    /// system together with that of the server, so other HTTPS clients of the shell work, too.
    Env,
    Completions(commands::completions::Completions),
    Man(commands::completions::Man),
}

impl Command {
    /// Whether it works with a server that runs.
    pub fn needs_server(&self) -> bool {
        !matches!(
            self,
            Command::Up(_) | Command::Env | Command::Completions(_) | Command::Man(_)
        )
    }

    /// Whether the exit status is that of the job.
    pub fn waits_for_job(&self) -> bool {
        match self {
            Command::Wait(_) | Command::Run(_) => true,
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

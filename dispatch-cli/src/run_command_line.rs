//! Runs the parsed command line: opens the session or state directory that the command needs, and
//! calls the command.

use clap::CommandFactory;

use crate::cli::{Cli, Command};
use crate::commands::user::administrator;
use crate::commands::{
    collection, completions, demand, env, explain, gc, get, hold, image, info, kill, list, logs,
    priority, put, retry, rm, run_job, show, submit, token, up, user, wait,
};
use crate::error::CliError;
use crate::exit::Exit;
use crate::printer::Output;
use crate::session::Session;
use crate::state_dir::StateDir;

/// Runs the command that was parsed.
pub async fn run(cli: Cli) -> Result<Exit, CliError> {
    let out = Output {
        json: cli.global.json,
    };
    let named = cli.global.state_dir();
    let state = || StateDir::locate(named.as_deref());
    let as_admin = || Session::open(named.as_deref())?.as_admin();
    let session = || match cli.global.admin {
        true => as_admin(),
        false => Session::open(named.as_deref()),
    };
    if cli.global.admin && cli.command.needs_server() {
        administrator(&session()?.client).await?;
    }
    match cli.command {
        Command::Up(up) => up::run(up, state()?).await?,
        Command::Env => env::run(&state()?, out)?,
        Command::Completions(completions) => completions::completions(&completions, out)?,
        Command::Man(man) => completions::man(&man, Cli::command(), out)?,
        Command::Submit(submit) => return submit::run(*submit, &session()?, out).await,
        Command::Run(run) => return run_job::run(*run, &session()?, out).await,
        Command::Wait(wait) => return wait::run(wait, &session()?, out).await,
        Command::List(list) => list::run(list, &session()?, out).await?,
        Command::Show(show) => show::run(show, &session()?, out).await?,
        Command::Logs(logs) => logs::run(logs, &session()?, out).await?,
        Command::Get(get) => get::run(get, &session()?, out).await?,
        Command::Put(put) => put::run(put, &session()?, out).await?,
        Command::Kill(kill) => kill::run(kill, &session()?, out).await?,
        Command::Hold(hold) => return hold::hold(hold, &session()?, out).await,
        Command::Release(release) => return hold::release(release, &session()?, out).await,
        Command::Priority(priority) => return priority::run(priority, &session()?, out).await,
        Command::Retry(retry) => return retry::run(retry, &session()?, out).await,
        Command::Rm(rm) => return rm::run(rm, &session()?, out).await,
        Command::Gc(gc) => gc::run(gc, &as_admin()?, out).await?,
        Command::Demand(demand) => demand::run(demand, &session()?, out).await?,
        Command::User(users) => user::run(users, &as_admin()?, out).await?,
        Command::Token(tokens) => token::run(tokens, &session()?, out).await?,
        Command::Info => info::run(&session()?, out).await?,
        Command::Image(image) => image::run(image, &session()?, out).await?,
        Command::Collection(collection) => {
            collection::run(collection, &session()?, cli.global.admin, out).await?
        }
        Command::Explain(explain) => explain::run(explain, &session()?, out).await?,
    }
    Ok(Exit::Ok)
}

//! The commands, one file each.

pub mod demand;
pub mod documents;
pub mod env;
pub mod explain;
pub mod get;
pub mod image;
pub mod info;
pub mod kill;
pub mod list;
pub mod logs;
pub mod put;
pub mod show;
pub mod submit;
pub mod up;
pub mod wait;

use crate::cli::{Cli, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::session::Session;
use crate::state_dir::StateDir;

/// Runs the command that was parsed.
pub async fn run(cli: Cli) -> Result<Exit, Failure> {
    let out = Output {
        json: cli.global.json,
    };
    let named = cli.global.state();
    let state = || StateDir::locate(named.as_deref());
    let session = || Session::open(named.as_deref());
    match cli.command {
        Command::Up(up) => up::run(up, state()?).await?,
        Command::Env(_) => env::run(&state()?, out)?,
        Command::Completions(completions) => documents::completions(&completions, out)?,
        Command::Man(man) => documents::man(&man, out)?,
        Command::Submit(submit) => return submit::run(*submit, &session()?, out).await,
        Command::Wait(wait) => return wait::run(wait, &session()?, out).await,
        Command::List(list) => list::run(list, &session()?, out).await?,
        Command::Show(show) => show::run(show, &session()?, out).await?,
        Command::Logs(logs) => logs::run(logs, &session()?, out).await?,
        Command::Get(get) => get::run(get, &session()?, out).await?,
        Command::Put(put) => put::run(put, &session()?, out).await?,
        Command::Kill(kill) => kill::run(kill, &session()?, out).await?,
        Command::Demand(demand) => demand::run(demand, &session()?, out).await?,
        Command::Info(_) => info::run(&session()?, out).await?,
        Command::Image(image) => image::run(image, &session()?, out).await?,
        Command::Explain(explain) => explain::run(explain, &session()?, out).await?,
    }
    Ok(Exit::Ok)
}

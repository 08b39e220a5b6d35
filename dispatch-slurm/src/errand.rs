//! What dispatch-slurm does beside its service, for people: show a submission, explain a container, check the set-up.

use std::error::Error;
use std::process::ExitCode;

use arvados_client::{Client, ContainerUuid};
use dispatch_core::Api;
use dispatch_core::config::Origins;
use dispatch_core::home::Home;
use dispatch_core::needs::Needs;
use dispatch_core::program::{self, TokenModeName};
use dispatch_core::scheduler::{Candidate, Scheduler};

use crate::check::check;
use crate::dry_run::dry_run;
use crate::explain::{Explanation, Facts, explain};
use crate::flags::{Errand, Flags, Format};
use crate::settings::Settings;
use crate::slurm::Slurm;

/// Does it, and prints the answer. 78: the check found something that fails, or this could not be done.
pub fn run(flags: &Flags, origins: &Origins, errand: &Errand) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answer = match runtime {
        Ok(runtime) => runtime.block_on(answer(flags, origins, errand)),
        Err(error) => Err(error.into()),
    };
    match answer {
        Ok((page, true)) => {
            print!("{page}");
            ExitCode::SUCCESS
        }
        Ok((page, false)) => {
            print!("{page}");
            program::refuse("the check found something that fails")
        }
        Err(error) => program::refuse(&error.to_string()),
    }
}

async fn answer(
    flags: &Flags,
    origins: &Origins,
    errand: &Errand,
) -> Result<(String, bool), Box<dyn Error>> {
    let settings = flags.settings().map_err(|error| error.to_string())?;
    let json = flags.format == Format::Json;
    let line = |value: serde_json::Result<String>| value.map(|text| text + "\n");
    Ok(match errand {
        Errand::DryRun { container } => {
            let record = client(flags)?.container(container).await?;
            let home = Home::visit(&flags.shared_dir)?;
            let reserve = flags.common.reserve_extra_ram;
            let shown = dry_run(&record, reserve, &settings, &home, origins)?;
            match json {
                true => (line(serde_json::to_string(&shown))?, true),
                false => (shown.text(), true),
            }
        }
        Errand::Explain { container } => {
            let told = facts(flags, settings, container).await?;
            match json {
                true => (line(serde_json::to_string(&told))?, true),
                false => (told.text(), true),
            }
        }
        Errand::Check { submit_test, wait } => {
            let report = check(flags, settings, submit_test.then_some(*wait)).await;
            match json {
                true => (line(serde_json::to_string(&report))?, report.ok),
                false => (report.text(), report.ok),
            }
        }
    })
}

fn client(flags: &Flags) -> Result<Client, Box<dyn Error>> {
    Ok(Client::new(program::endpoint(&flags.common)?)?)
}

async fn facts(
    flags: &Flags,
    settings: Settings,
    uuid: &ContainerUuid,
) -> Result<Explanation, Box<dyn Error>> {
    let client = client(flags)?;
    let container = client.container(uuid).await?;
    let home = Home::visit(&flags.shared_dir)?;
    let label = home.known_label().unwrap_or_default();
    let candidate = Candidate {
        container: uuid.clone(),
        needs: Needs::of(&container).and_ram(flags.common.reserve_extra_ram),
    };
    let holder = container.locked_by_uuid.clone();
    let own = match flags.common.token_mode {
        TokenModeName::Shared => Some(client.own_token().await?.uuid),
        TokenModeName::PerAttempt => None,
    };
    let tokens = client.tokens().await?;
    let slurm = Slurm::new(settings, home, label, flags.common.command_timeout);
    let ours = holder.filter(|holder| {
        let attempt = tokens.iter().find(|token| token.uuid == *holder);
        own.as_ref() == Some(holder) || attempt.is_some_and(|token| slurm.minted(&token.scopes))
    });
    let jobs = slurm.list().await.map_err(|error| error.to_string());
    let jobs = jobs.map(|mut jobs| {
        jobs.retain(|job| job.container == *uuid);
        jobs
    });
    let ended = match (&ours, &jobs) {
        (Some(attempt), Ok(jobs)) if jobs.is_empty() => {
            Some(slurm.ending(uuid, attempt).await.reason).filter(|reason| !reason.is_empty())
        }
        _ => None,
    };
    let waiting = slurm.waiting().remove(uuid);
    let mut fits = slurm.admit(&[candidate], &[]);
    Ok(explain(&Facts {
        container,
        held_by_us: ours.is_some(),
        jobs,
        waiting,
        ended,
        fit: fits.pop().unwrap_or(dispatch_core::needs::Fit::Now),
    }))
}

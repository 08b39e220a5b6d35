//! What sbatch would be told for a container, and where each value comes from. Nothing is submitted, and no secret is
//! shown: the token is in a file, which the script names.

use std::collections::BTreeMap;

use arvados_client::records::Container;
use dispatch_core::attempt_dir::{AttemptDir, token_name};
use dispatch_core::config::Origins;
use dispatch_core::dry_run::{Explained, attempt_of, page, shown, values};
use dispatch_core::errand::Page;
use dispatch_core::home::Home;
use dispatch_core::needs::Needs;
use serde::Serialize;

use crate::settings::Settings;
use crate::squeue;
use crate::submission::Job;

/// What would be handed to sbatch.
#[derive(Debug, Serialize)]
pub struct DryRun {
    arguments: Vec<Explained>,
    values: Vec<Explained>,
    environment: BTreeMap<String, String>,
    script: String,
}

/// For this record, as the service would submit it; `reserve` is the memory set aside for crunch-run.
pub fn dry_run(
    container: &Container,
    reserve: u64,
    settings: &Settings,
    home: &Home,
    origins: &Origins,
) -> Result<DryRun, Box<dyn std::error::Error>> {
    let needs = Needs::of(container).and_ram(reserve);
    let dir = AttemptDir::of(home.path(), &container.uuid);
    let attempt = attempt_of(container)?;
    let comment = squeue::comment(&attempt, &home.shown_label());
    let arguments = settings.sbatch(Job {
        container: &container.uuid,
        needs: &needs,
        comment: &comment,
        output: &dir.output_file(),
        avoid: &[],
    })?;
    let token_file = dir.token_file_of(&attempt);
    let script = settings.script(&container.uuid, &token_file)?;
    let named = |text: String| {
        text.replace(&token_name(&attempt), "token-ATTEMPT")
            .replace(attempt.as_str(), "ATTEMPT")
    };
    let explained = arguments.into_iter().map(|argument| Explained {
        value: named(argument.text),
        from: argument.from.words(origins),
    });
    Ok(DryRun {
        arguments: explained.collect(),
        values: values(container, reserve, &needs),
        environment: shown(&settings.environment),
        script: named(script),
    })
}

impl Page for DryRun {
    fn text(&self) -> String {
        let sections = [("sbatch", &*self.arguments), ("values", &*self.values)];
        page(&sections, &self.environment) + "script\n" + &self.script
    }
}

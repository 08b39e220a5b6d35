//! Shows the `sbatch` arguments and script of a container, and where each value comes from.
//!
//! Input: a container record. Output: a page for the admin. Nothing is submitted, and no secret is
//! shown: the token is in a file that the script names.

use std::collections::BTreeMap;

use arvados_client::records::Container;
use crunch_contract::job_dir::token_file_for;
use dispatch_core::config::ValueSources;
use dispatch_core::model::owner::KnownOwner;
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::scheduler::attempt_dir::AttemptDir;
use dispatch_core::service::state_dir::StateDir;
use dispatch_core::service::subcommands::Render;
use dispatch_core::service::subcommands::dry_run::{
    SourcedValue, page, redacted, sample_attempt, values,
};
use serde::Serialize;

use crate::job_comment;
use crate::query::partition_times::PartitionTimes;
use crate::settings::Settings;
use crate::submit::sbatch::{ROOM_TO_RAISE, SbatchJob};

/// What the service would pass to sbatch.
#[derive(Debug, Serialize)]
pub struct DryRun {
    arguments: Vec<SourcedValue>,
    values: Vec<SourcedValue>,
    environment: BTreeMap<String, String>,
    script: String,
}

/// Renders the submission of this record. `times` are the limits of the partitions where it may
/// run; `reserve` is the memory set aside for crunch-run.
pub fn dry_run(
    (container, owner): (&Container, KnownOwner),
    (reserve, times): (u64, PartitionTimes),
    settings: &Settings,
    home: &StateDir,
    origins: &ValueSources,
) -> Result<DryRun, Box<dyn std::error::Error>> {
    let mut needs = ResourceRequest::of(container).with_reserved_ram(reserve);
    needs.charged_to = Some(std::sync::Arc::new(settings.charge(&owner)));
    let dir = AttemptDir::of(home.path(), &container.uuid);
    let attempt = sample_attempt(container)?;
    let comment = job_comment::write(
        &attempt,
        &home.instance_id_or_placeholder(),
        owner.as_deref(),
    );
    let arguments = settings.sbatch_arguments(SbatchJob {
        container: &container.uuid,
        needs: &needs,
        comment: &comment,
        output: &dir.output_file(),
        avoid: &[],
        nice: ROOM_TO_RAISE,
        times,
    })?;
    let token_file = dir.token_file_of(&attempt);
    let script = settings.job_script(&container.uuid, &token_file)?;
    let named = |text: String| {
        text.replace(&token_file_for(attempt.as_str()), "token-ATTEMPT")
            .replace(attempt.as_str(), "ATTEMPT")
    };
    let explained = arguments.into_iter().map(|argument| SourcedValue {
        value: named(argument.text),
        from: argument.from.describe(origins),
    });
    Ok(DryRun {
        arguments: explained.collect(),
        values: values(container, reserve, &needs),
        environment: redacted(&settings.environment),
        script: named(script),
    })
}

impl Render for DryRun {
    fn text(&self) -> String {
        let sections = [("sbatch", &*self.arguments), ("values", &*self.values)];
        page(&sections, &self.environment) + "script\n" + &self.script
    }
}

//! `--dry-run`: the submit description of a container, and the source of each line. Nothing is
//! submitted.
//!
//! The output has no secret: the token is in a file, which the description names.

use std::collections::BTreeMap;

use arvados_client::records::Container;
use dispatch_core::config::ValueSources;
use dispatch_core::model::owner::KnownOwner;
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::service::subcommands::Render;
use dispatch_core::service::subcommands::dry_run::{
    Source, SourcedValue, redacted, sample_attempt, values,
};
use serde::Serialize;

use crate::condor::Condor;
use crate::submit::admin_lines::RequestedKinds;
use crate::submit::description::{Item, Settings};
use crate::submit::macros::field_names;

/// The input of condor_submit for one container.
#[derive(Debug, Serialize)]
pub struct DryRun {
    lines: Vec<SourcedValue>,
    /// The values of macros for this container; those of resources that it does not request are
    /// left out.
    macros: BTreeMap<&'static str, String>,
    values: Vec<SourcedValue>,
    environment: BTreeMap<String, String>,
    /// The whole description.
    description: String,
}

/// Reasons for the built-in lines, by their keys, which blanks separate.
const LINE_REASONS: [(&str, &str); 10] = [
    ("environment", "the API server, and EnvironmentVariables"),
    ("comma", "a comma within a field of an item"),
    ("shouldtransferfiles", "the nodes need no shared directory"),
    (
        "transferinputfiles",
        "the token is transferred as a file that only its user can read",
    ),
    ("transferoutputfiles", "crunch-run saves the results itself"),
    (
        "output error log",
        "the dispatcher reads crunch-run's output and the job's events there",
    ),
    (
        "requestcpus requestmemory requestdisk requestgpus requiregpus",
        "the container's resource request",
    ),
    (
        "containeruuid attemptuuid containerdispatcher",
        "the dispatcher finds the job again by it",
    ),
    (
        "containeruser containerproject",
        "for people who look at the queue",
    ),
    (
        "requirements",
        "not on nodes where it failed, and never again after a start that may have run the container",
    ),
];

/// Placeholder of the attempt's uuid, which only a real attempt has.
const ATTEMPT_PLACEHOLDER: &str = "ATTEMPT";
/// Reason for all other built-in lines.
const DEFAULT_REASON: &str = "how attempts run: once each, and with TERM before KILL";

/// The input for this record, as the service would submit it; `reserve` is the memory reserved for
/// crunch-run.
pub fn dry_run(
    (container, owner): (&Container, KnownOwner),
    reserve: u64,
    settings: &Settings,
    condor: &Condor,
    origins: &ValueSources,
) -> Result<DryRun, Box<dyn std::error::Error>> {
    let needs = ResourceRequest::of(container).with_reserved_ram(reserve);
    let dir = condor.attempt_dir(&container.uuid);
    let attempt = sample_attempt(container)?;
    let owner_lines = settings.owner_lines(owner.as_deref());
    let requested = RequestedKinds::of(&needs, owner.as_deref());
    let common = condor.description_params(requested, &owner_lines, &[]);
    let item = Item {
        container: &container.uuid,
        attempt: &attempt,
        needs: &needs,
        owner: owner.as_deref(),
        dir: dir.path(),
    };
    let fields = field_names().into_iter().zip(settings.item_fields(&item)?);
    let mut macros: BTreeMap<_, _> = fields
        .map(|(name, value)| (name, value.replace("$(Comma)", ",")))
        .collect();
    macros.retain(|_, value| value != "$(Nothing)");
    macros.insert("AttemptName", ATTEMPT_PLACEHOLDER.to_owned());
    let description = settings.describe(&common, &[item])?;
    let lines = settings.lines(&common)?;
    let lines = lines.into_iter().map(|line| {
        let built_in = || built_in_source(&line.key(), settings, &needs);
        let source = line.source.clone().unwrap_or_else(built_in);
        SourcedValue {
            from: source.describe(origins),
            value: line.text,
        }
    });
    Ok(DryRun {
        lines: lines.collect(),
        macros,
        values: values(container, reserve, &needs),
        environment: redacted(&settings.environment),
        description: description.replace(attempt.as_str(), ATTEMPT_PLACEHOLDER),
    })
}

/// The source of a built-in line, by its key.
fn built_in_source(key: &str, settings: &Settings, needs: &ResourceRequest) -> Source {
    let set = |flag, value: String| Source::Set { flag, value };
    match key {
        "executable" | "arguments" => set("crunch_run", settings.crunch_run.join(" ")),
        "transferexecutable" => set(
            "transfer_crunch_run",
            settings.transfer_crunch_run.to_string(),
        ),
        "jobmaxvacatetime" => set("stop_grace", format!("{} s", settings.stop_grace_seconds)),
        "allowedexecuteduration" => {
            let value = format!("max_run_time, and {} s", settings.staging.seconds(needs));
            set("staging_allowance", value)
        }
        _ => {
            let known = LINE_REASONS
                .iter()
                .find(|(keys, _)| keys.split_whitespace().any(|known| known == key));
            Source::Always(known.map_or(DEFAULT_REASON, |(_, why)| why))
        }
    }
}

impl Render for DryRun {
    /// A submit description that condor_submit reads, with comments.
    fn text(&self) -> String {
        let mut page = String::new();
        for SourcedValue { value, from } in &self.values {
            page += &format!("# {value}  ({from})\n");
        }
        let mut last = "";
        for SourcedValue { value, from } in &self.lines {
            if from != last {
                page += &format!("\n# {from}\n");
            }
            page += &format!("{value}\n");
            last = from;
        }
        // The description begins with the lines.
        let items = self.description.lines().skip(self.lines.len());
        page += "\n# an item for each job; that of this container means\n";
        for (name, value) in &self.macros {
            page += &format!("#   $({name}) = {value}\n");
        }
        for line in items {
            page += &format!("{line}\n");
        }
        page
    }
}

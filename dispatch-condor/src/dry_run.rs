//! What condor_submit would be told for a container, and where each line comes from. Nothing is submitted, and no secret
//! is shown: the token is in a file, which the description names.

use std::collections::BTreeMap;

use arvados_client::records::Container;
use dispatch_core::config::Origins;
use dispatch_core::dry_run::{Explained, Source, attempt_of, shown, values};
use dispatch_core::errand::Page;
use dispatch_core::needs::Needs;
use serde::Serialize;

use crate::condor::Condor;
use crate::lines::Line;
use crate::submission::{Item, Settings, names};

/// What would be handed to condor_submit.
#[derive(Debug, Serialize)]
pub struct DryRun {
    lines: Vec<Explained>,
    /// What stands for the macros in the lines, for this container: what it does not ask for is not there.
    macros: BTreeMap<&'static str, String>,
    values: Vec<Explained>,
    environment: BTreeMap<String, String>,
    /// All of it, as condor_submit reads it.
    description: String,
}

/// Why there are lines of ours, by their keys.
const REASONS: [(&[&str], &str); 9] = [
    (&["environment"], "the API server, and EnvironmentVariables"),
    (&["comma"], "a comma within a field of an item"),
    (
        &["shouldtransferfiles"],
        "nothing need be shared with the nodes",
    ),
    (
        &["transferinputfiles"],
        "the token travels as a file that only its user can read",
    ),
    (
        &["transferoutputfiles"],
        "crunch-run saves the results itself",
    ),
    (
        &["output", "error", "log"],
        "what crunch-run says, and when it ends, is read here",
    ),
    (
        &[
            "requestcpus",
            "requestmemory",
            "requestdisk",
            "requestgpus",
            "requiregpus",
        ],
        "what the container asks for",
    ),
    (
        &["containeruuid", "attemptuuid", "containerdispatcher"],
        "the job is found again by it",
    ),
    (
        &["requirements"],
        "not where it failed before, and never again after a start that may have run it",
    ),
];
/// Stands for the attempt's name, which is made with the attempt.
const ATTEMPT: &str = "ATTEMPT";
/// And of all others.
const ELSE: &str = "how attempts are run: once each, and asked before they are ended";

/// For this record, as the service would submit it by `condor`; `reserve` is the memory set aside for crunch-run.
pub fn dry_run(
    container: &Container,
    reserve: u64,
    settings: &Settings,
    condor: &Condor,
    origins: &Origins,
) -> Result<DryRun, Box<dyn std::error::Error>> {
    let needs = Needs::of(container).and_ram(reserve);
    let dir = condor.dir(&container.uuid);
    let attempt = attempt_of(container)?;
    let common = condor.common(&needs, &[]);
    let item = Item {
        container: &container.uuid,
        attempt: &attempt,
        needs: &needs,
        dir: dir.path(),
    };
    let fields = names().into_iter().zip(settings.fields(&item)?);
    let mut macros: BTreeMap<_, _> = fields
        .map(|(name, value)| (name, value.replace("$(Comma)", ",")))
        .collect();
    macros.retain(|_, value| value != "$(Nothing)");
    macros.insert("AttemptName", ATTEMPT.to_owned());
    let description = settings.describe(&common, &[item])?;
    let lines = settings.lines(&common)?;
    let lines = lines.into_iter().map(|line| Explained {
        from: from(&line, settings, origins),
        value: line.text,
    });
    Ok(DryRun {
        lines: lines.collect(),
        macros,
        values: values(container, reserve, &needs),
        environment: shown(&settings.environment),
        description: description.replace(attempt.as_str(), ATTEMPT),
    })
}

fn from(line: &Line, settings: &Settings, origins: &Origins) -> String {
    let source = match &line.from {
        Some(source) => source.clone(),
        None => of_ours(&line.key(), settings),
    };
    source.words(origins)
}

/// Why a line of ours is there, by what it sets.
fn of_ours(key: &str, settings: &Settings) -> Source {
    let set = |flag, value: String| Source::Set { flag, value };
    match key {
        "executable" | "arguments" => set("crunch_run", settings.crunch_run.join(" ")),
        "transferexecutable" => set("transfer_crunch_run", settings.transfer.to_string()),
        "jobmaxvacatetime" => set("stop_grace", format!("{} s", settings.grace)),
        "allowedexecuteduration" => {
            let value = format!("max_run_time, and {} s", settings.staging);
            set("staging_allowance", value)
        }
        _ => {
            let known = REASONS.iter().find(|(keys, _)| keys.contains(&key));
            Source::Always(known.map_or(ELSE, |(_, why)| why))
        }
    }
}

impl Page for DryRun {
    /// A submit description that condor_submit reads, with comments.
    fn text(&self) -> String {
        let mut page = String::new();
        for Explained { value, from } in &self.values {
            page += &format!("# {value}  ({from})\n");
        }
        let mut last = "";
        for Explained { value, from } in &self.lines {
            if from != last {
                page += &format!("\n# {from}\n");
            }
            page += &format!("{value}\n");
            last = from;
        }
        // The lines are its beginning.
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

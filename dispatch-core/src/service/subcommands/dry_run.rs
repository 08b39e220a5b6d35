//! The output of `--dry-run`: the values that a scheduler would get for a container, and the source
//! of each. Secrets are redacted.

use std::collections::BTreeMap;
use std::fmt::Write;

use arvados_client::TokenUuid;
use arvados_client::records::Container;
use serde::Serialize;

use crate::config::ValueSources;
use crate::model::resources::ResourceRequest;

const MIB: u64 = 1 << 20;
/// Maximum width of the value column. Longer values do not move the sources of the others.
const MAX_COLUMN_WIDTH: usize = 60;

/// The reason for which a value is given to a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The value is always given, for this reason.
    Always(&'static str),
    /// The admin set this template or value, by flag or configuration key.
    Set {
        /// Name of the flag in the program.
        flag: &'static str,
        /// What was set.
        value: String,
    },
}

impl Source {
    /// The source in words for the admin.
    pub fn describe(&self, origins: &ValueSources) -> String {
        match self {
            Self::Always(why) => format!("always: {why}"),
            Self::Set { flag, value } => origins.describe(flag, value),
        }
    }
}

/// A value and its source.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct SourcedValue {
    /// The value given to the scheduler.
    pub value: String,
    /// Source of the value.
    pub from: String,
}

/// The numbers that templates are filled with. `reserve` is the memory in bytes for crunch-run
/// itself.
pub fn values(container: &Container, reserve: u64, needs: &ResourceRequest) -> Vec<SourcedValue> {
    let wants = &container.runtime_constraints;
    let explained = |value: String, from: String| SourcedValue { value, from };
    let (ram, cache) = (wants.ram, wants.keep_cache_ram);
    let (tmp, image, disk) = (needs.scratch, needs.image, needs.cache_disk);
    let mut all = vec![
        explained(
            format!("%M = {} MiB", needs.ram.div_ceil(MIB)),
            format!("ram {ram}, keep_cache_ram {cache}, ReserveExtraRAM {reserve} bytes"),
        ),
        explained(
            format!("%T = {} MiB", needs.disk().div_ceil(MIB)),
            format!(
                "tmp mounts {tmp}, the image perhaps {image} twice (once in the mounts if there is room), keep_cache_disk {disk} bytes"
            ),
        ),
    ];
    if let Some(seconds) = needs.max_run_time {
        let value = format!("%W = {} min", seconds.div_ceil(60));
        all.push(explained(value, format!("max_run_time {seconds} s")));
    }
    all
}

/// A stand-in for the attempt's uuid, which does not exist before the attempt.
pub fn sample_attempt(container: &Container) -> Result<TokenUuid, arvados_client::ids::IdError> {
    TokenUuid::parse(&container.uuid.to_string().replacen("dz642", "gj3su", 1))
}

/// Whether the name of a variable or attribute suggests a secret.
pub fn looks_secret(name: &str) -> bool {
    let upper = name.to_uppercase();
    ["TOKEN", "SECRET", "PASSW", "CREDENTIAL", "_KEY"]
        .iter()
        .any(|word| upper.contains(word))
}

/// The variables with the values of those redacted whose names suggest a secret.
pub fn redacted(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let one = |(name, value): (&String, &String)| {
        let value = if looks_secret(name) { "…" } else { value };
        (name.clone(), value.to_owned())
    };
    environment.iter().map(one).collect()
}

/// A page with sections of values and their sources, and the environment.
pub fn page(
    sections: &[(&str, &[SourcedValue])],
    environment: &BTreeMap<String, String>,
) -> String {
    let all = sections.iter().flat_map(|(_, lines)| lines.iter());
    let width = all.map(|line| line.value.len()).max().unwrap_or(0);
    let width = width.min(MAX_COLUMN_WIDTH);
    let mut page = String::new();
    // Writing to a string never fails.
    for (name, lines) in sections {
        let _ = writeln!(page, "{name}");
        for SourcedValue { value, from } in *lines {
            let _ = writeln!(page, "  {value:width$}  # {from}");
        }
    }
    page += "environment\n";
    for (name, value) in environment {
        let _ = writeln!(page, "  {name}={value}");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_may_be_secret_is_not_shown() {
        let show = |name: &str| redacted(&BTreeMap::from([(name.to_owned(), "value".to_owned())]));
        for name in ["S3_SECRET_X", "my_token", "AWS_ACCESS_KEY_ID", "PGPASSWORD"] {
            assert_eq!(show(name)[name], "…", "{name}");
        }
        for name in ["ARVADOS_KEEP_SERVICES", "ARVADOS_API_HOST"] {
            assert_eq!(show(name)[name], "value", "{name}");
        }
    }

    #[test]
    fn a_page_says_what_and_why() {
        let line = SourcedValue {
            value: "a = 1".to_owned(),
            from: Source::Always("so").describe(&ValueSources::default()),
        };
        let environment = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
        assert_eq!(
            page(&[("lines", &[line])], &environment),
            "lines\n  a = 1  # always: so\nenvironment\n  A=b\n"
        );
    }
}

//! What a scheduler would be told for a container, for people: values and where they come from. No secret is shown.

use std::collections::BTreeMap;
use std::fmt::Write;

use arvados_client::TokenUuid;
use arvados_client::records::Container;
use serde::Serialize;

use crate::config::Origins;
use crate::needs::Needs;

const MIB: u64 = 1 << 20;
/// Values longer than this do not move what is said of the others.
const WIDEST: usize = 60;

/// Why something is told to a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// It is always there, for this reason.
    Always(&'static str),
    /// The admin's flag, or what stands for it, with this template or value.
    Set {
        /// Name of the flag in the program.
        flag: &'static str,
        /// What was set.
        value: String,
    },
}

impl Source {
    /// In words for the admin.
    pub fn words(&self, origins: &Origins) -> String {
        match self {
            Self::Always(why) => format!("always: {why}"),
            Self::Set { flag, value } => origins.words(flag, value),
        }
    }
}

/// Something, and where it comes from.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// What is told.
    pub value: String,
    /// Where it comes from.
    pub from: String,
}

/// The numbers that templates are filled with; `reserve` is the memory set aside for crunch-run.
pub fn values(container: &Container, reserve: u64, needs: &Needs) -> Vec<Explained> {
    let wants = &container.runtime_constraints;
    let explained = |value: String, from: String| Explained { value, from };
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

/// Stands for the attempt's name, which is made with the attempt.
pub fn attempt_of(container: &Container) -> Result<TokenUuid, arvados_client::ids::IdError> {
    TokenUuid::parse(&container.uuid.to_string().replacen("dz642", "gj3su", 1))
}

/// Whether the name of a variable or an attribute speaks of a secret.
pub fn speaks_of_a_secret(name: &str) -> bool {
    let upper = name.to_uppercase();
    ["TOKEN", "SECRET", "PASSW", "CREDENTIAL", "_KEY"]
        .iter()
        .any(|word| upper.contains(word))
}

/// Variables as they may be shown: one whose name speaks of a secret may hold one.
pub fn shown(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let one = |(name, value): (&String, &String)| {
        let value = if speaks_of_a_secret(name) {
            "…"
        } else {
            value
        };
        (name.clone(), value.to_owned())
    };
    environment.iter().map(one).collect()
}

/// A page of sections of values with their sources, and the environment.
pub fn page(sections: &[(&str, &[Explained])], environment: &BTreeMap<String, String>) -> String {
    let all = sections.iter().flat_map(|(_, lines)| lines.iter());
    let width = all.map(|line| line.value.len()).max().unwrap_or(0);
    let width = width.min(WIDEST);
    let mut page = String::new();
    // A string never refuses to be written to.
    for (name, lines) in sections {
        let _ = writeln!(page, "{name}");
        for Explained { value, from } in *lines {
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
        let show = |name: &str| shown(&BTreeMap::from([(name.to_owned(), "value".to_owned())]));
        for name in ["S3_SECRET_X", "my_token", "AWS_ACCESS_KEY_ID", "PGPASSWORD"] {
            assert_eq!(show(name)[name], "…", "{name}");
        }
        for name in ["ARVADOS_KEEP_SERVICES", "ARVADOS_API_HOST"] {
            assert_eq!(show(name)[name], "value", "{name}");
        }
    }

    #[test]
    fn a_page_says_what_and_why() {
        let line = Explained {
            value: "a = 1".to_owned(),
            from: Source::Always("so").words(&Origins::default()),
        };
        let environment = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
        assert_eq!(
            page(&[("lines", &[line])], &environment),
            "lines\n  a = 1  # always: so\nenvironment\n  A=b\n"
        );
    }
}

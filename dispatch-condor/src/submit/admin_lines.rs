//! The admin's lines of submit descriptions: parses their templates, and merges them over the
//! built-in lines.
//!
//! A template's `%` tokens become macros that the item of each job fills, so one description holds
//! many jobs. A line that refers to a resource is left out for jobs that do not request it
//! ([`RequestedKinds`]). So such jobs need separate descriptions.

use dispatch_core::model::owner::Owner;
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::scheduler::template::{self, Substitution, TemplateError, owner_value};
use dispatch_core::service::subcommands::dry_run::Source;

use crate::submit::line_syntax::{normalized_key, split_line};
use crate::submit::macros::TEMPLATE_MACROS;
use crate::submit::quoting::{self, Unquotable};

use crate::submit::reserved_keys::{SECRET_REASON, rejection_reason};

/// Keys of resource requests, as [`normalized_key`] returns them.
const REQUEST_KEYS: [&str; 4] = ["requestcpus", "requestmemory", "requestdisk", "requestgpus"];
/// Why an admin's line is rejected.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The line has a line break or another character that a description cannot hold.
    #[error(transparent)]
    Unquotable(#[from] Unquotable),
    /// The key is reserved, or the line is no assignment.
    #[error("the submit line {line:?} is rejected: {why}")]
    Refused { line: String, why: String },
}

/// The set of resources that a container requests, as far as they decide which lines its job gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestedKinds(u8);

impl RequestedKinds {
    pub const NONE: Self = Self(0);
    /// It is in a project.
    pub const PROJECT: Self = Self(1);
    /// The name of its user is known.
    pub const USER: Self = Self(1 << 1);
    /// It may run where other jobs take its machine away.
    pub const PREEMPTIBLE: Self = Self(1 << 2);
    pub const GPUS: Self = Self(1 << 3);
    /// It names partitions.
    pub const PARTITIONS: Self = Self(1 << 4);
    pub const RUN_TIME_LIMIT: Self = Self(1 << 5);
    pub const ALL: Self = Self((1 << 6) - 1);

    /// The requests of a container with these needs and this owner.
    pub fn of(needs: &ResourceRequest, owner: Option<&Owner>) -> Self {
        let kinds = [
            (owner_value('g', owner).is_some(), Self::PROJECT),
            (owner_value('u', owner).is_some(), Self::USER),
            (needs.preemptible, Self::PREEMPTIBLE),
            (needs.gpus > 0, Self::GPUS),
            (!needs.partitions.is_empty(), Self::PARTITIONS),
            (needs.max_run_time.is_some(), Self::RUN_TIME_LIMIT),
        ];
        let requested = kinds.into_iter().filter(|(is_requested, _)| *is_requested);
        requested.fold(Self::NONE, |all, (_, kind)| all.with(kind))
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether this container requests all that `other` requests.
    pub fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A line and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The text in the description.
    pub text: String,
    /// The admin's setting; none for a built-in line.
    pub source: Option<Source>,
}

impl Line {
    /// The key, as [`normalized_key`] returns it.
    pub fn key(&self) -> String {
        normalized_key(split_line(&self.text).0)
    }

    /// Lets condor_submit compute a request that is an arithmetic expression. HTCondor would keep
    /// the expression, which could not be compared with the slots.
    fn with_computed_sum(self) -> Vec<Self> {
        let key = self.key();
        if !REQUEST_KEYS.contains(&key.as_str()) || !is_arithmetic(self.value()) {
            return vec![self];
        }
        let texts = [
            format!("Sum{key} = {}", self.value()),
            format!("{} = $INT(Sum{key})", split_line(&self.text).0),
        ];
        let source = self.source;
        let line = |text| Self {
            text,
            source: source.clone(),
        };
        texts.map(line).to_vec()
    }

    fn value(&self) -> &str {
        split_line(&self.text).1
    }
}

/// The admin's lines, each with the resources that a container must request to get it.
#[derive(Debug, Clone, Default)]
pub struct AdminLines(Vec<(RequestedKinds, Line)>);

impl AdminLines {
    /// Adds a template from the flag `flag`, only for containers that request all of `asks`.
    pub fn add(
        &mut self,
        flag: &'static str,
        template: &str,
        asks: RequestedKinds,
    ) -> Result<(), LineError> {
        let asks = std::cell::Cell::new(asks);
        let filled = template::render_with(template, |letter| {
            asks.set(asks.get().with(match letter {
                'W' => RequestedKinds::RUN_TIME_LIMIT,
                'P' => RequestedKinds::PARTITIONS,
                'u' => RequestedKinds::USER,
                'g' => RequestedKinds::PROJECT,
                _ => RequestedKinds::NONE,
            }));
            let found = TEMPLATE_MACROS.iter().find(|(known, _)| *known == letter);
            found.map_or(Substitution::Unknown, |(_, name)| {
                Substitution::Is(format!("$({name})"))
            })
        })?;
        let text = quoting::line("a submit line", filled.as_deref().unwrap_or_default())?;
        if let Some(why) = rejection_reason(&text) {
            // Does not repeat what may be a secret.
            let line = match why == SECRET_REASON {
                true => format!("{} = …", split_line(template).0),
                false => template.to_owned(),
            };
            return Err(LineError::Refused { line, why });
        }
        let source = Some(Source::Set {
            flag,
            value: template.to_owned(),
        });
        self.0.push((asks.get(), Line { text, source }));
        Ok(())
    }

    /// Adds a line from a flag of its own, which later lines may override. An empty value adds
    /// nothing.
    pub fn add_setting(
        &mut self,
        flag: &'static str,
        key: &str,
        value: &str,
    ) -> Result<(), LineError> {
        match value.trim() {
            "" => Ok(()),
            value => {
                self.add(flag, &format!("{key} = {value}"), RequestedKinds::NONE)?;
                if let Some((_, line)) = self.0.last_mut() {
                    let value = value.to_owned();
                    line.source = Some(Source::Set { flag, value });
                }
                Ok(())
            }
        }
    }

    /// Merges the admin's lines over the built-in ones. The last line of each key wins, except that
    /// requirements of both sides are combined with `&&`.
    pub fn merge_over(&self, ours: Vec<String>, asks: RequestedKinds) -> Vec<Line> {
        let theirs = self.0.iter().filter(|(needed, _)| asks.includes(*needed));
        let ours = ours.into_iter().map(|text| Line { text, source: None });
        let mut lines: Vec<Line> = Vec::new();
        for mut line in ours.chain(theirs.map(|(_, line)| line.clone())) {
            let key = line.key();
            if let Some(index) = lines.iter().position(|earlier| earlier.key() == key) {
                let earlier = lines.remove(index);
                if key == "requirements" {
                    line.text =
                        format!("requirements = ({}) && ({})", line.value(), earlier.value());
                }
            }
            lines.push(line);
        }
        lines
            .into_iter()
            .flat_map(Line::with_computed_sum)
            .collect()
    }

    /// These lines with those of the owner map, which come before the ones of preemptible
    /// containers.
    pub fn with_owner_lines(&self, templates: &[String]) -> Result<Self, LineError> {
        let mut owners = Self::default();
        for template in templates {
            owners.add("owner_map", template, RequestedKinds::NONE)?;
        }
        let preemptible =
            |(asks, _): &&(RequestedKinds, Line)| asks.includes(RequestedKinds::PREEMPTIBLE);
        let (last, first): (Vec<_>, Vec<_>) = self.0.iter().partition(preemptible);
        let first = first.into_iter().cloned().chain(owners.0);
        Ok(Self(first.chain(last.into_iter().cloned()).collect()))
    }

    /// The tokens of the user and the project that lines refer to: `%u`, `%g`.
    pub fn owner_tokens(&self) -> Vec<String> {
        let tokens = [
            (RequestedKinds::USER, "%u"),
            (RequestedKinds::PROJECT, "%g"),
        ];
        let used = tokens.into_iter().filter(|(kind, _)| self.refer_to(*kind));
        used.map(|(_, token)| token.to_owned()).collect()
    }

    /// Whether a line is only for containers that request this.
    pub fn refer_to(&self, kind: RequestedKinds) -> bool {
        self.0.iter().any(|(asks, _)| asks.includes(kind))
    }
}

/// Whether a value consists of numbers, macros of numbers, and arithmetic operators.
fn is_arithmetic(value: &str) -> bool {
    let numbers = TEMPLATE_MACROS
        .iter()
        .fold(value.to_owned(), |text, (_, name)| {
            text.replace(&format!("$({name})"), "1")
        });
    let is_part = |c: char| c.is_ascii_digit() || " .+-*/()".contains(c);
    numbers.contains(['+', '-', '*', '/']) && numbers.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(templates: &[&str]) -> Result<AdminLines, LineError> {
        let mut lines = AdminLines::default();
        for template in templates {
            lines.add("lines", template, RequestedKinds::NONE)?;
        }
        Ok(lines)
    }

    fn texts(lines: &AdminLines, ours: &[&str], asks: RequestedKinds) -> Vec<String> {
        let ours = ours.iter().map(|text| (*text).to_owned()).collect();
        let all = lines.merge_over(ours, asks);
        all.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn what_a_container_does_not_ask_for_is_left_out() {
        let mut given = lines(&[
            "+Size = \"%C/%M/%T/%G/%I\"",
            "+Queue = \"%P\"",
            "+Limit = %W",
        ])
        .unwrap();
        given
            .add("gpu_lines", "+GPUs = %G * 100%%", RequestedKinds::GPUS)
            .unwrap();
        given
            .add(
                "preemptible_lines",
                "+Low = true",
                RequestedKinds::PREEMPTIBLE,
            )
            .unwrap();
        assert_eq!(
            texts(&given, &[], RequestedKinds::default()),
            ["+Size = \"$(JobCpus)/$(JobMemory)/$(JobScratch)/$(JobGpus)/$(JobInstanceType)\""]
        );
        assert_eq!(
            texts(&given, &[], RequestedKinds::ALL)[1..],
            [
                "+Queue = \"$(JobPartitions)\"",
                "+Limit = $(JobMinutes)",
                "+GPUs = $(JobGpus) * 100%",
                "+Low = true"
            ]
        );
    }

    #[test]
    fn the_admins_lines_win_and_requirements_add_up() {
        let given = lines(&[
            "Request_Memory = 2 * %M",
            "requirements = HasX || Y",
            "MY.Project = \"a\"",
            "+project = \"b\"",
        ])
        .unwrap();
        let ours = [
            "request_memory = 1",
            "requirements = A =!= \"n1\"",
            "request_cpus = 1",
        ];
        assert_eq!(
            texts(&given, &ours, RequestedKinds::default()),
            [
                "request_cpus = 1",
                "Sumrequestmemory = 2 * $(JobMemory)",
                "Request_Memory = $INT(Sumrequestmemory)",
                "requirements = (HasX || Y) && (A =!= \"n1\")",
                "+project = \"b\"",
            ]
        );
    }

    #[test]
    fn a_setting_of_its_own_gives_way_to_a_line() {
        let mut given = AdminLines::default();
        given.add_setting("rank", "rank", "Memory").unwrap();
        given
            .add_setting("accounting_group", "accounting_group", " ")
            .unwrap();
        assert_eq!(
            texts(&given, &[], RequestedKinds::default()),
            ["rank = Memory"]
        );
        given
            .add("lines", "rank = Cpus", RequestedKinds::NONE)
            .unwrap();
        assert_eq!(
            texts(&given, &[], RequestedKinds::default()),
            ["rank = Cpus"]
        );
    }

    #[test]
    fn lines_that_are_not_the_admins_are_refused_with_the_reason() {
        #[rustfmt::skip]
        let rows = [
            ("+ContainerUUID = \"x\"", "finds a job again"),
            ("my.attemptuuid = \"x\"", "finds a job again"),
            ("On_Exit_Remove = true", "crunch-run"),
            ("+OnExitRemove = true", "crunch-run"),
            ("periodic_release = true", "lost or run twice"),
            ("leave_in_queue=true", "lost or run twice"),
            ("priority = 5", "order of jobs"),
            ("job_max_vacate_time = 600", "--stop-grace"),
            ("+JobMaxVacateTime = 600", "--stop-grace"),
            ("transfer_input_files = x", "--transfer-crunch-run"),
            ("getenv = true", "EnvironmentVariables"),
            ("universe = docker", "is started by it"),
            ("JobCpus = 3", "uses itself"),
            ("queue 100", "KEY = VALUE"),
            ("include : /etc/passwd", "KEY = VALUE"),
            ("if version >= 9", "KEY = VALUE"),
            ("a @=end", "KEY = VALUE"),
            ("$(x) = 3", "KEY = VALUE"),
            ("", "KEY = VALUE"),
            ("+Note = \"v2/zzzzz-gj3su-000000000000000/abcdef\"", "secret"),
            ("+DbPassword = \"hunter2\"", "secret"),
            ("queue = 5", "KEY = VALUE"),
            ("materialize_max_idle = 1", "lost or run twice"),
            ("+NumJobStarts = 0", "lost or run twice"),
            ("a = 1\nqueue 100", "line break"),
            ("a = 1\\", "backslash"),
            ("+X = %J", "unknown substitution %J"),
        ];
        for (line, why) in rows {
            let error = lines(&[line]).unwrap_err().to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
        for line in [
            "error_x = 1",
            "+WantGpuLab = true",
            "job_lease_duration = 1200",
            "use_scitokens = true",
        ] {
            assert!(lines(&[line]).is_ok(), "{line}");
        }
    }

    #[test]
    fn a_request_that_is_a_sum_is_worked_out_before_it_is_submitted() {
        let given = lines(&[
            "request_memory = %M + 512",
            "request_disk = ifThenElse(x, 1, 2)",
            "Request_Cpus = (%C * 2)",
        ]);
        let texts = texts(
            &given.unwrap(),
            &["request_memory = 1"],
            RequestedKinds::default(),
        );
        let expected = [
            "Sumrequestmemory = $(JobMemory) + 512",
            "request_memory = $INT(Sumrequestmemory)",
            "request_disk = ifThenElse(x, 1, 2)",
            "Sumrequestcpus = ($(JobCpus) * 2)",
            "Request_Cpus = $INT(Sumrequestcpus)",
        ];
        assert_eq!(texts, expected);
    }
}

//! The admin's lines of submit descriptions: templates, and which of them are not his to set.
//!
//! A template's `%` tokens become macros that each job's item fills, so that one description holds many jobs. What a job
//! does not ask for makes a line go: jobs that differ in that ([`Asks`]) do not go together.

use dispatch_core::dry_run::Source;
use dispatch_core::needs::Needs;
use dispatch_core::template::{self, TemplateError, Value};

use crate::quote::{self, Unwritable};

mod refused;

pub use refused::is_token;
use refused::{SECRET, refusal};

/// The letters of templates, the macro of each, in the order of an item's fields. [`crate::submission`] has one more.
pub const MACROS: [(char, &str); 8] = [
    ('U', "ContainerName"),
    ('C', "JobCpus"),
    ('M', "JobMemory"),
    ('T', "JobScratch"),
    ('G', "JobGpus"),
    ('W', "JobMinutes"),
    ('P', "JobPartitions"),
    ('I', "JobInstanceType"),
];

/// What is compared with what the slots have.
const REQUESTS: [&str; 4] = ["requestcpus", "requestmemory", "requestdisk", "requestgpus"];
/// Why an admin's line cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// A template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A line break.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    /// Something else.
    #[error("the submit line {line:?} is refused: {why}")]
    Refused {
        /// Which.
        line: String,
        /// Why.
        why: String,
    },
}

/// What a container asks for, as far as that decides which lines its job gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asks {
    /// It has a limit of run time.
    pub limit: bool,
    /// It names partitions.
    pub partitions: bool,
    /// It has GPUs.
    pub gpus: bool,
}

impl Asks {
    /// All there is.
    pub const ALL: Self = Self {
        limit: true,
        partitions: true,
        gpus: true,
    };

    /// Of a container with these needs.
    pub fn of(needs: &Needs) -> Self {
        Self {
            limit: needs.max_run_time.is_some(),
            partitions: !needs.partitions.is_empty(),
            gpus: needs.gpus > 0,
        }
    }

    /// Whether a container that asks for this asks for all of that.
    fn includes(self, other: Self) -> bool {
        self.limit >= other.limit && self.partitions >= other.partitions && self.gpus >= other.gpus
    }
}

/// A line, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// As it is written.
    pub text: String,
    /// The admin's setting; none: it is ours.
    pub from: Option<Source>,
}

impl Line {
    /// What it sets, as [`bare`] has it.
    pub fn key(&self) -> String {
        bare(split(&self.text).0)
    }

    /// A request that is a sum is worked out by condor_submit: HTCondor would keep it as it stands, and what a job asks for
    /// could not be compared with what there is.
    fn computed(self) -> Vec<Self> {
        let key = self.key();
        if !REQUESTS.contains(&key.as_str()) || !is_sum(self.value()) {
            return vec![self];
        }
        let texts = [
            format!("Sum{key} = {}", self.value()),
            format!("{} = $INT(Sum{key})", split(&self.text).0),
        ];
        let from = self.from;
        let line = |text| Self {
            text,
            from: from.clone(),
        };
        texts.map(line).to_vec()
    }

    /// What it is set to.
    fn value(&self) -> &str {
        split(&self.text).1
    }
}

/// The admin's lines.
#[derive(Debug, Clone, Default)]
pub struct Lines(Vec<(Asks, Line)>);

impl Lines {
    /// Adds a template that was set by `flag`; `gpus`: for containers with GPUs only.
    pub fn add(&mut self, flag: &'static str, template: &str, gpus: bool) -> Result<(), LineError> {
        let mut asks = Asks {
            gpus,
            ..Asks::default()
        };
        let asked = std::cell::Cell::new(asks);
        let filled = template::fill(template, |letter| {
            let mut now = asked.get();
            now.limit |= letter == 'W';
            now.partitions |= letter == 'P';
            asked.set(now);
            let found = MACROS.iter().find(|(known, _)| *known == letter);
            found.map_or(Value::Unknown, |(_, name)| Value::Is(format!("$({name})")))
        })?;
        asks = asked.get();
        let text = quote::line("a submit line", filled.as_deref().unwrap_or_default())?;
        if let Some(why) = refusal(&text) {
            // Where it may be a secret it is not repeated.
            let line = match why == SECRET {
                true => format!("{} = …", split(template).0),
                false => template.to_owned(),
            };
            return Err(LineError::Refused { line, why });
        }
        let from = Some(Source::Set {
            flag,
            value: template.to_owned(),
        });
        self.0.push((asks, Line { text, from }));
        Ok(())
    }

    /// Adds a setting of its own, which the lines above all may set too; one that is empty is not set.
    pub fn set(&mut self, flag: &'static str, key: &str, value: &str) -> Result<(), LineError> {
        match value.trim() {
            "" => Ok(()),
            value => {
                self.add(flag, &format!("{key} = {value}"), false)?;
                if let Some((_, line)) = self.0.last_mut() {
                    let value = value.to_owned();
                    line.from = Some(Source::Set { flag, value });
                }
                Ok(())
            }
        }
    }

    /// Ours with the admin's for such a container. The last line about something holds, and the others go; but where both
    /// sides have requirements, both hold.
    pub fn over(&self, ours: Vec<String>, asks: Asks) -> Vec<Line> {
        let theirs = self.0.iter().filter(|(needed, _)| asks.includes(*needed));
        let ours = ours.into_iter().map(|text| Line { text, from: None });
        let mut lines: Vec<Line> = Vec::new();
        for mut line in ours.chain(theirs.map(|(_, line)| line.clone())) {
            let key = line.key();
            if let Some(place) = lines.iter().position(|earlier| earlier.key() == key) {
                let earlier = lines.remove(place);
                if key == "requirements" {
                    line.text =
                        format!("requirements = ({}) && ({})", line.value(), earlier.value());
                }
            }
            lines.push(line);
        }
        lines.into_iter().flat_map(Line::computed).collect()
    }

    /// Whether one of them names partitions.
    pub fn name_partitions(&self) -> bool {
        self.0.iter().any(|(asks, _)| asks.partitions)
    }
}

fn split(text: &str) -> (&str, &str) {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    (key.trim(), value.trim())
}

/// Numbers of the container and of the site, and signs between them.
fn is_sum(value: &str) -> bool {
    let numbers = MACROS.iter().fold(value.to_owned(), |text, (_, name)| {
        text.replace(&format!("$({name})"), "1")
    });
    let is_part = |c: char| c.is_ascii_digit() || " .+-*/()".contains(c);
    numbers.contains(['+', '-', '*', '/']) && numbers.chars().all(is_part)
}

/// A key without what HTCondor does not look at: `+OnExitRemove`, `MY.OnExitRemove` and `on_exit_remove` are one.
fn bare(key: &str) -> String {
    let lower = key.trim().to_lowercase();
    let name = lower.strip_prefix('+').unwrap_or(&lower);
    let name = name.trim().strip_prefix("my.").unwrap_or(name.trim());
    name.replace('_', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(templates: &[&str]) -> Result<Lines, LineError> {
        let mut lines = Lines::default();
        for template in templates {
            lines.add("lines", template, false)?;
        }
        Ok(lines)
    }

    fn texts(lines: &Lines, ours: &[&str], asks: Asks) -> Vec<String> {
        let ours = ours.iter().map(|text| (*text).to_owned()).collect();
        let all = lines.over(ours, asks);
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
        given.add("gpu_lines", "+GPUs = %G * 100%%", true).unwrap();
        assert_eq!(
            texts(&given, &[], Asks::default()),
            ["+Size = \"$(JobCpus)/$(JobMemory)/$(JobScratch)/$(JobGpus)/$(JobInstanceType)\""]
        );
        assert_eq!(
            texts(&given, &[], Asks::ALL)[1..],
            [
                "+Queue = \"$(JobPartitions)\"",
                "+Limit = $(JobMinutes)",
                "+GPUs = $(JobGpus) * 100%"
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
            texts(&given, &ours, Asks::default()),
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
        let mut given = Lines::default();
        given.set("rank", "rank", "Memory").unwrap();
        given
            .set("accounting_group", "accounting_group", " ")
            .unwrap();
        assert_eq!(texts(&given, &[], Asks::default()), ["rank = Memory"]);
        given.add("lines", "rank = Cpus", false).unwrap();
        assert_eq!(texts(&given, &[], Asks::default()), ["rank = Cpus"]);
    }

    #[test]
    fn lines_that_are_not_the_admins_are_refused_with_the_reason() {
        #[rustfmt::skip]
        let rows = [
            ("+ContainerUUID = \"x\"", "found again"),
            ("my.attemptuuid = \"x\"", "found again"),
            ("On_Exit_Remove = true", "crunch-run"),
            ("+OnExitRemove = true", "crunch-run"),
            ("periodic_release = true", "lost or run twice"),
            ("leave_in_queue=true", "lost or run twice"),
            ("priority = 5", "order of jobs"),
            ("job_max_vacate_time = 600", "--stop-grace"),
            ("+JobMaxVacateTime = 600", "--stop-grace"),
            ("transfer_input_files = x", "--transfer-crunch-run"),
            ("getenv = true", "EnvironmentVariables"),
            ("universe = docker", "is started with it"),
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
        let texts = texts(&given.unwrap(), &["request_memory = 1"], Asks::default());
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

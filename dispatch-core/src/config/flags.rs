//! Flags over the configuration file: what the file says is the default of the flag that says the same.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches};

use super::{Config, ConfigError};
use crate::program;

/// The flag of programs that read the file.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Flag {
    /// Arvados configuration file (YAML); a flag beats what it says
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// What the file says that a flag says too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The flag's name in the program.
    pub flag: &'static str,
    /// Where in the file, below the cluster.
    pub key: &'static str,
    /// As one would write it behind the flag.
    pub values: Vec<String>,
}

/// Where the value of a flag comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// This key of the file.
    File(&'static str),
    /// Nobody set it.
    Default,
}

/// Where the values of flags come from.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    matches: ArgMatches,
    /// What flags are called on the command line.
    names: BTreeMap<String, String>,
    file: BTreeMap<&'static str, &'static str>,
}

impl Origins {
    /// Of the flag of this name in the program.
    pub fn of(&self, flag: &str) -> Origin {
        let set = self.matches.try_contains_id(flag).unwrap_or(false)
            && self.matches.value_source(flag) == Some(ValueSource::CommandLine);
        match (set, self.file.get(flag)) {
            (true, _) => Origin::Flag,
            (false, Some(key)) => Origin::File(key),
            (false, None) => Origin::Default,
        }
    }

    /// Where `value` of that flag comes from, in words.
    pub fn words(&self, flag: &str, value: &str) -> String {
        let name = self.names.get(flag).map_or(flag, String::as_str);
        match self.of(flag) {
            Origin::Flag => format!("--{name}: {value}"),
            Origin::File(key) => format!("{key}: {value}"),
            Origin::Default => format!("default of --{name}: {value}"),
        }
    }
}

/// The program's flags, with what the file that `--config` names says in place of those that are not given. `given` is
/// how the program understands the file. A flag that is wrong ends the program, as ever.
pub fn parse<F: CommandFactory + FromArgMatches>(
    arguments: impl IntoIterator<Item = OsString>,
    given: impl Fn(&Config) -> Vec<Given>,
) -> Result<(F, Origins, Option<Config>), ConfigError> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = read(F::command(), &arguments);
    let Some(path) = matches.get_one::<PathBuf>("config") else {
        return Ok((made(&matches), of::<F>(matches, Vec::new()), None));
    };
    let config = Config::read(path)?;
    let given = given(&config);
    let command = given.iter().fold(F::command(), |command, given| {
        // clap keeps defaults for as long as the program runs.
        let values: Vec<&'static str> = given.values.iter().map(|v| &*v.clone().leak()).collect();
        command.mut_arg(given.flag, |flag| flag.default_values(values))
    });
    let matches = read(command, &arguments);
    Ok((made(&matches), of::<F>(matches, given), Some(config)))
}

fn read(command: clap::Command, arguments: &[OsString]) -> ArgMatches {
    let matches = command.try_get_matches_from(arguments);
    matches.unwrap_or_else(|error| program::refuse_flags(error))
}

fn made<F: FromArgMatches>(matches: &ArgMatches) -> F {
    F::from_arg_matches(matches).unwrap_or_else(|error| program::refuse_flags(error))
}

fn of<F: CommandFactory>(matches: ArgMatches, given: Vec<Given>) -> Origins {
    let command = F::command();
    let flags = command.get_arguments();
    let names = flags.filter_map(|flag| Some((flag.get_id().to_string(), flag.get_long()?.into())));
    Origins {
        names: names.collect(),
        matches,
        file: given.into_iter().map(|g| (g.flag, g.key)).collect(),
    }
}

impl Config {
    /// What the file says to every dispatcher.
    pub fn common(&self) -> Vec<Given> {
        let containers = &self.cluster.containers;
        let reserve = containers.reserve_extra_ram.map(|bytes| Given {
            flag: "reserve_extra_ram",
            key: "Containers.ReserveExtraRAM",
            values: vec![bytes.to_string()],
        });
        let retry = containers.min_retry_period.map(|period| Given {
            flag: "min_retry_period",
            key: "Containers.MinRetryPeriod",
            values: vec![format!("{}ms", period.as_millis())],
        });
        reserve.into_iter().chain(retry).collect()
    }

    /// crunch-run's command with its arguments, and the engine behind them; `program` where the file names none.
    pub fn crunch_run(&self, program: &str) -> Option<Given> {
        let containers = &self.cluster.containers;
        let command = containers.crunch_run_command.as_deref();
        let arguments = containers.crunch_run_arguments_list.as_deref();
        let engine = containers.runtime_engine.as_deref();
        if command.is_none() && arguments.is_none() && engine.is_none() {
            return None;
        }
        let engine = engine.map(|engine| format!("--runtime-engine={engine}"));
        let words = [command.unwrap_or(program)]
            .into_iter()
            .chain(arguments.unwrap_or_default().iter().map(String::as_str))
            .chain(engine.as_deref());
        // A NUL cannot be in a command, and is not in YAML.
        let quoted = shlex::try_join(words).ok()?;
        Some(Given {
            flag: "crunch_run",
            key: "Containers.CrunchRunCommand, CrunchRunArgumentsList, RuntimeEngine",
            values: vec![quoted],
        })
    }
}

/// What a setting that holds one text says, if it is set.
pub fn one(flag: &'static str, key: &'static str, value: Option<String>) -> Option<Given> {
    list(flag, key, value.map(|value| vec![value]))
}

/// What a setting that holds a list says, if it is set.
pub fn list(flag: &'static str, key: &'static str, values: Option<Vec<String>>) -> Option<Given> {
    let values = values?;
    Some(Given { flag, key, values })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::program;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        file: Flag,
        #[command(flatten)]
        common: program::Flags,
    }

    #[test]
    fn a_flag_beats_the_file_and_the_file_the_default() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text =
            "Clusters: {zzzzz: {Containers: {ReserveExtraRAM: 1KiB, MinRetryPeriod: 1m30s}}}";
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let parsed = |more: &[&str]| {
            let all = ["x"].iter().chain(more).map(OsString::from);
            parse::<Flags>(all, Config::common).unwrap()
        };
        let (flags, origins, config) = parsed(&["--config", path, "--min-retry-period=5s"]);
        assert_eq!(flags.common.reserve_extra_ram, 1024);
        assert_eq!(flags.common.min_retry_period, Duration::from_secs(5));
        assert_eq!(flags.file.config, config.map(|config| config.path));
        assert_eq!(
            origins.of("reserve_extra_ram"),
            Origin::File("Containers.ReserveExtraRAM")
        );
        assert_eq!(origins.of("min_retry_period"), Origin::Flag);
        assert_eq!(origins.of("max_pending"), Origin::Default);
        for (flag, words) in [
            ("reserve_extra_ram", "Containers.ReserveExtraRAM: 1"),
            ("min_retry_period", "--min-retry-period: 1"),
            ("max_pending", "default of --max-pending: 1"),
        ] {
            assert_eq!(origins.words(flag, "1"), words);
        }
        let (flags, _, _) = parsed(&["--config", path]);
        assert_eq!(flags.common.min_retry_period, Duration::from_secs(90));
        let (flags, origins, config) = parsed(&[]);
        assert_eq!(flags.common.min_retry_period, Duration::from_secs(2));
        assert!(config.is_none() && flags.file.config.is_none());
        assert_eq!(origins.of("reserve_extra_ram"), Origin::Default);
    }
}

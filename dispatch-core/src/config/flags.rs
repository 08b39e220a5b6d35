//! Merges flags with the configuration file. Input: arguments and file; output: the flags, with
//! file values as defaults, and the source of each value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches};

use super::{Config, ConfigError, Key};
use crate::service::exit::exit_usage_error;

/// The flag of programs that read the file.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Flag {
    /// Configuration file of Arvados (YAML); flags override its values
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// A configuration key that supplies the default of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDefault {
    /// Name of the flag in the program.
    pub flag: &'static str,
    /// Path of the key, below the cluster.
    pub key: &'static str,
    /// The values, in the syntax of the command line.
    pub values: Vec<String>,
}

/// The sources of all flag values.
#[derive(Debug, Clone, Default)]
pub struct ValueSources {
    matches: ArgMatches,
    /// Names of the flags on the command line.
    names: BTreeMap<String, String>,
    file: BTreeMap<&'static str, &'static str>,
}

impl ValueSources {
    /// Text for the user: the source of `value` for that flag.
    pub fn describe(&self, flag: &str, value: &str) -> String {
        let name = self.names.get(flag).map_or(flag, String::as_str);
        let is_set = self.matches.try_contains_id(flag).unwrap_or(false)
            && self.matches.value_source(flag) == Some(ValueSource::CommandLine);
        match (is_set, self.file.get(flag)) {
            (true, _) => format!("--{name}: {value}"),
            (false, Some(key)) => format!("{key}: {value}"),
            (false, None) => format!("default of --{name}: {value}"),
        }
    }
}

/// Parses the program's flags. The file that `--config` names supplies the flags that are not
/// given: by the keys in `own`, and as `more` says. A wrong flag ends the program, as clap does.
pub fn parse<F: CommandFactory + FromArgMatches>(
    arguments: impl IntoIterator<Item = OsString>,
    own: &[Key],
    more: impl Fn(&Config) -> Vec<FileDefault>,
) -> Result<(F, ValueSources, Option<Config>), ConfigError> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = read(F::command(), &arguments);
    let Some(path) = matches.get_one::<PathBuf>("config") else {
        return Ok((from_matches(&matches), of::<F>(matches, Vec::new()), None));
    };
    let config = Config::read(path, own)?;
    let given: Vec<FileDefault> = config.defaults().chain(more(&config)).collect();
    let command = given.iter().fold(F::command(), |command, given| {
        // clap keeps references to defaults for the program's lifetime, so the strings are leaked.
        let values: Vec<&'static str> = given.values.iter().map(|v| &*v.clone().leak()).collect();
        command.mut_arg(given.flag, |flag| flag.default_values(values))
    });
    let matches = read(command, &arguments);
    Ok((
        from_matches(&matches),
        of::<F>(matches, given),
        Some(config),
    ))
}

fn read(command: clap::Command, arguments: &[OsString]) -> ArgMatches {
    let matches = command.try_get_matches_from(arguments);
    matches.unwrap_or_else(|error| exit_usage_error(error))
}

fn from_matches<F: FromArgMatches>(matches: &ArgMatches) -> F {
    F::from_arg_matches(matches).unwrap_or_else(|error| exit_usage_error(error))
}

fn of<F: CommandFactory>(matches: ArgMatches, given: Vec<FileDefault>) -> ValueSources {
    let command = F::command();
    let flags = command.get_arguments();
    let names = flags.filter_map(|flag| Some((flag.get_id().to_string(), flag.get_long()?.into())));
    ValueSources {
        names: names.collect(),
        matches,
        file: given.into_iter().map(|g| (g.flag, g.key)).collect(),
    }
}

impl Config {
    /// The defaults of flags in the program's keys.
    fn defaults(&self) -> impl Iterator<Item = FileDefault> {
        let given = self.values.iter().filter(|(key, _)| !key.flag.is_empty());
        given.map(|(key, values)| FileDefault {
            flag: key.flag,
            key: key.path,
            values: values.clone(),
        })
    }

    /// The command, the arguments and the engine of crunch-run.
    pub fn crunch_run_keys(&self) -> (Option<&str>, Vec<&str>, Option<&str>) {
        let texts = |path| self.values(path).unwrap_or_default().iter();
        let one = |path| texts(path).next().map(String::as_str);
        let arguments = texts("Containers.CrunchRunArgumentsList");
        (
            one("Containers.CrunchRunCommand"),
            arguments.map(String::as_str).collect(),
            one("Containers.RuntimeEngine"),
        )
    }

    /// The default of crunch-run's command: the program with its arguments and the container
    /// engine. `program` is used if the file names no command.
    pub fn crunch_run(&self, program: &str) -> Option<FileDefault> {
        let (command, arguments, engine) = self.crunch_run_keys();
        if command.is_none() && arguments.is_empty() && engine.is_none() {
            return None;
        }
        let engine = engine.map(|engine| format!("--runtime-engine={engine}"));
        let words = [command.unwrap_or(program)]
            .into_iter()
            .chain(arguments)
            .chain(engine.as_deref());
        // This fails only for a NUL, which neither YAML nor a command can contain.
        let quoted = shlex::try_join(words).ok()?;
        Some(FileDefault {
            flag: "crunch_run",
            key: "Containers.CrunchRunCommand, CrunchRunArgumentsList, RuntimeEngine",
            values: vec![quoted],
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::service;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        file: Flag,
        #[command(flatten)]
        common: service::Flags,
    }

    #[test]
    fn numbers_out_of_their_range_are_refused() {
        for (flag, refused, accepted) in [
            ("poll-interval", ["0", "99ms", "2h"], ["100ms", "1h"]),
            ("min-poll-interval", ["0", "1us", "2m"], ["1ms", "1m"]),
            ("max-pending", ["0", "-1", "1000001"], ["1", "1000000"]),
            ("max-supervisors", ["0", "x", "1000001"], ["1", "1000000"]),
            ("stop-grace", ["0", "999ms", "8d"], ["1s", "7d"]),
            ("start-timeout", ["1ms", "-1s", "400d"], ["0", "366d"]),
            ("undelivered-wait", ["1ms", "-1s", "400d"], ["0", "366d"]),
            ("min-retry-period", ["0", "9ms", "2h"], ["10ms", "1h"]),
            ("scheduler-rate", ["0", "nan", "1e-30"], ["0.1", "none"]),
            ("command-timeout", ["0", "999ms", "2h"], ["1s", "1h"]),
        ] {
            let parsed = |value: &str| Flags::try_parse_from(["x", &format!("--{flag}={value}")]);
            for value in refused {
                let error = parsed(value).unwrap_err().to_string();
                assert!(error.contains(flag), "{flag} {value}: {error}");
            }
            for value in accepted {
                assert!(parsed(value).is_ok(), "{flag} {value}");
            }
        }
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
            parse::<Flags>(all, &[], |_| Vec::new()).unwrap()
        };
        let (flags, origins, config) = parsed(&["--config", path, "--min-retry-period=5s"]);
        assert_eq!(flags.common.reserve_extra_ram, 1024);
        assert_eq!(flags.common.min_retry_period, Duration::from_secs(5));
        assert_eq!(flags.file.config, config.map(|config| config.path));
        for (flag, words) in [
            ("reserve_extra_ram", "Containers.ReserveExtraRAM: 1"),
            ("min_retry_period", "--min-retry-period: 1"),
            ("max_pending", "default of --max-pending: 1"),
        ] {
            assert_eq!(origins.describe(flag, "1"), words);
        }
        let (flags, _, _) = parsed(&["--config", path]);
        assert_eq!(flags.common.min_retry_period, Duration::from_secs(90));
        let (flags, origins, config) = parsed(&[]);
        assert_eq!(flags.common.min_retry_period, Duration::from_secs(2));
        assert!(config.is_none() && flags.file.config.is_none());
        assert_eq!(
            origins.describe("reserve_extra_ram", "1"),
            "default of --reserve-extra-ram: 1"
        );
    }
}

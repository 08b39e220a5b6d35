//! Log lines on standard error. Input: `--log-format` and `--log-level`. Output: a subscriber.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::Flags;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// A bare word that is no level is a filter as well: of a module with that name, so that nothing
/// else is logged.
fn log_filter(text: &str) -> Result<EnvFilter, String> {
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    let is_clear = |part: &str| part.contains(['=', '[']) || is_level(part);
    if let Some(part) = text.split(',').map(str::trim).find(|part| !is_clear(part)) {
        return Err(format!(
            "--log-level {text:?}: {part:?} is no level; use error, warn, info, debug, or a filter \
             like dispatch_core=debug"
        ));
    }
    EnvFilter::try_new(text)
        .map_err(|error| format!("--log-level {text:?} is not a filter: {error}"))
}

pub(super) fn log_to_stderr(flags: &Flags) -> Result<(), String> {
    let filter = log_filter(&flags.log_level)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let set = match flags.log_format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    set.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for text in [
            "info",
            "WARN",
            "debug,hyper_util=info",
            "dispatch_core=debug",
            "off",
        ] {
            assert!(log_filter(text).is_ok(), "{text}");
        }
        for text in ["loud", "warning", "", "info,verbose", "a=loud"] {
            assert!(log_filter(text).is_err(), "{text}");
        }
    }
}

//! `--stdin-config`: reads variables from stdin, as upstream's cloud dispatcher sends them.
//!
//! The program then starts again with these variables, because the environment cannot be changed
//! safely once there are threads. The token goes into a file of the job directory, where neither
//! `ps` nor a job listing shows it.

use std::collections::BTreeMap;
use std::ffi::OsString;

use std::io::{self, Read, Write};

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use arvados_client::Token;
use host_state::file::create_private;

use serde::Deserialize;

use crate::flags::normalise;
use crate::gateway::secret::{TokenFile, VARIABLE as GATEWAY_SECRET};
use crate::node::detach::own_program;

/// Maximum size of the text in bytes; it may contain a whole cluster configuration.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
const TOKEN: &str = "ARVADOS_API_TOKEN";

/// The text. Its other parts (`Cluster`, `KeepBuffers`, `EC2SpotCheck`) are for programs that do
/// not exist here.
#[derive(Debug, Default, Deserialize)]
pub struct Config {
    #[serde(rename = "Env", default)]
    env: BTreeMap<String, String>,
}

/// Why the text cannot be used. The text has secrets, so none of it is shown.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the configuration on stdin cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error(
        "the configuration on stdin is not a JSON object with \"Env\" (line {line}, column {column})"
    )]
    Json { line: usize, column: usize },
    #[error("the configuration on stdin is longer than {} MiB", MAX_CONFIG_BYTES >> 20)]
    TooLong,
    #[error("{what}: {source}")]
    Start {
        what: String,
        #[source]
        source: io::Error,
    },
}

impl Config {
    /// Reads the whole text.
    pub fn read(from: impl Read) -> Result<Self, ConfigError> {
        let mut text = String::new();
        let read = from.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text);
        read.map_err(ConfigError::Read)?;
        if text.len() as u64 > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLong);
        }
        serde_json::from_str(&text).map_err(|error| ConfigError::Json {
            line: error.line(),
            column: error.column(),
        })
    }

    /// Replaces this process by the same program with these variables and with `dir` as its job
    /// directory. Returns only on failure.
    pub fn re_exec(
        mut self,
        dir: &Path,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> ConfigError {
        let token = self.env.remove(TOKEN).map(Token::new);
        let mut given: Vec<OsString> = vec!["--job-dir".into(), dir.into()];
        if let Some(token) = &token {
            let path = dir.join("token");
            let secret = self.env.remove(GATEWAY_SECRET);
            let text = TokenFile::text(token, secret.as_deref());
            let file = create_private(&path);
            if let Err(source) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
                let what = format!("the token cannot be written to {}", path.display());
                return ConfigError::Start { what, source };
            }
            given.extend(["--token-file".into(), path.into()]);
        }
        given.extend(own_arguments(arguments));
        let source = Command::new(own_program())
            .arg0("crunch-run")
            .args(given)
            .envs(self.env)
            .stdin(Stdio::null())
            .exec();
        ConfigError::Start {
            what: "crunch-run cannot be started again".into(),
            source,
        }
    }
}

/// The arguments without the program's name and `--stdin-config`.
fn own_arguments(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let is_ours = |word: &OsString| {
        word.to_str()
            .is_some_and(|word| word == "--stdin-config" || word.starts_with("--stdin-config="))
    };
    let words = normalise(arguments).into_iter().skip(1);
    words.filter(|word| !is_ours(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_variables_count_and_nothing_is_shown_of_a_bad_text() {
        let text = r#"{"Env": {"ARVADOS_API_TOKEN": "v2/x/secret", "A": "b"}, "KeepBuffers": 1, "Cluster": null}"#;
        let config = Config::read(text.as_bytes()).unwrap();
        assert_eq!(config.env["A"], "b");
        assert!(Config::read(&b"{}"[..]).unwrap().env.is_empty());
        for bad in [
            "",
            "[1, 2]",
            r#"{"Env": {"ARVADOS_API_TOKEN": secret}}"#,
            r#"{"Env": "secret"}"#,
        ] {
            let error = Config::read(bad.as_bytes()).unwrap_err().to_string();
            assert!(
                error.contains("line") && !error.contains("secret"),
                "{error}"
            );
        }
        let endless = Config::read(io::repeat(b' ')).unwrap_err();
        assert!(matches!(endless, ConfigError::TooLong));
    }

    #[test]
    fn the_other_arguments_are_given_again() {
        let given = [
            "crunch-run",
            "-detach",
            "-stdin-config=true",
            "--cache-dir",
            "c",
            "u",
        ];
        assert_eq!(
            own_arguments(given.map(OsString::from)),
            ["--detach", "--cache-dir", "c", "u"]
        );
    }
}

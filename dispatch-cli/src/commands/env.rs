//! `dispatch env`: prints the environment lines of the running `dispatch up`.

use std::path::Path;

use serde_json::json;

use crate::error::CliError;
use crate::printer::Output;
use crate::state_dir::{ServerRecord, StateDir};

pub fn run(state: &StateDir, out: Output) -> Result<(), CliError> {
    let server = state.server()?;
    let endpoint = state.endpoint()?;
    let token = endpoint.token.expose();
    if !out.json {
        return out.bytes(lines(&server, &quote(token)).as_bytes());
    }
    out.json(&json!({
        "ARVADOS_API_HOST": server.host,
        "SSL_CERT_FILE": server.ca_bundle,
        "ARVADOS_API_TOKEN": token,
    }))
}

/// The lines for a shell that reads the token from its file. They contain no secret.
pub fn lines_without_token(server: &ServerRecord) -> String {
    lines(
        server,
        &format!("\"$(cat {})\"", quote_path(&server.token_file)),
    )
}

fn lines(server: &ServerRecord, token: &str) -> String {
    format!(
        "export ARVADOS_API_HOST={} SSL_CERT_FILE={}\nexport ARVADOS_API_TOKEN={token}\n",
        quote(&server.host),
        quote_path(&server.ca_bundle)
    )
}

fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

/// Quotes a word for a shell. A path of the operating system has no zero byte, which no shell can
/// quote.
pub fn quote(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| "''".to_owned(), |quoted| quoted.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_can_be_pasted() {
        for word in ["a/b", "a b", "it's", "", "$x", "a=b,c%d", "\\"] {
            let split = shlex::split(&quote(word));
            assert_eq!(split.as_deref(), Some(&[word.to_owned()][..]));
        }
        assert_eq!(quote("a/b-c.d_e:f@g+h"), "a/b-c.d_e:f@g+h");
    }

    #[test]
    fn a_shell_reads_the_lines_whatever_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a 'b' $(c)");
        std::fs::create_dir(&odd).unwrap();
        std::fs::write(odd.join("token"), "v2/x/secret\n").unwrap();
        let server = ServerRecord {
            host: "127.0.0.1:1".to_owned(),
            certificate: odd.join("certificate"),
            ca_bundle: odd.join("bundle"),
            token_file: odd.join("token"),
            admin_token_file: odd.join("admin"),
        };
        let without = lines_without_token(&server);
        assert!(!without.contains("secret"), "{without}");
        for lines in [without, lines(&server, &quote("v2/x/secret"))] {
            let show =
                "printf '%s\\n' \"$ARVADOS_API_HOST\" \"$SSL_CERT_FILE\" \"$ARVADOS_API_TOKEN\"";
            let output = std::process::Command::new("sh")
                .args(["-c", &(lines + show)])
                .output()
                .unwrap();
            let bundle = server.ca_bundle.display();
            let expected = format!("127.0.0.1:1\n{bundle}\nv2/x/secret\n");
            assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        }
    }
}

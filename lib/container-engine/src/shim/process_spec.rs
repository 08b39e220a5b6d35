//! Arguments, environment and working directory of the container's first process, from the image's
//! configuration and the request.

use std::collections::BTreeMap;

use crate::StartError;
use node_cache::image::ImageConfig;

/// Docker's PATH if neither the image nor the request sets one.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// ENTRYPOINT and the command, or CMD if there is no command.
pub fn arguments(image: &ImageConfig, command: &[String]) -> Result<Vec<String>, StartError> {
    let command = if command.is_empty() {
        &image.cmd
    } else {
        command
    };
    let all: Vec<String> = image.entrypoint.iter().chain(command).cloned().collect();
    if all.is_empty() {
        return Err(StartError::NoCommand);
    }
    Ok(all)
}

/// The working directory, and whether the request set it.
pub fn working_directory(image: &ImageConfig, cwd: Option<&str>) -> (String, bool) {
    let (dir, is_requested) = match cwd {
        None | Some("" | ".") => (image.working_dir.as_deref().unwrap_or("/"), false),
        Some(cwd) => (cwd, true),
    };
    if dir.starts_with('/') {
        (dir.to_owned(), is_requested)
    } else {
        (format!("/{dir}"), is_requested)
    }
}

/// The image's variables, overridden by `granted` (those of GPUs), overridden by the request's.
pub fn environment(
    image: &ImageConfig,
    hostname: &str,
    home: &str,
    granted: &[(String, String)],
    given: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut variables: BTreeMap<&str, &str> = BTreeMap::from([
        ("PATH", DEFAULT_PATH),
        ("HOSTNAME", hostname),
        ("HOME", home),
    ]);
    variables.extend(image.env.iter().filter_map(|v| v.split_once('=')));
    variables.extend(granted.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    variables.extend(given.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    variables
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// The value of a variable in a list of `NAME=value`.
pub fn variable<'a>(environment: &'a [String], name: &str) -> Option<&'a str> {
    environment
        .iter()
        .find_map(|v| v.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn entrypoint_and_command_as_docker_joins_them() {
        type Words = &'static [&'static str];
        // entrypoint, cmd, command of the request, what runs
        let cases: [(Words, Words, Words, Option<Words>); 6] = [
            (&[], &["sh"], &[], Some(&["sh"])),
            (&[], &["sh"], &["true"], Some(&["true"])),
            (&["tool"], &["--help"], &[], Some(&["tool", "--help"])),
            (&["tool"], &["--help"], &["run"], Some(&["tool", "run"])),
            (&["tool"], &[], &[], Some(&["tool"])),
            (&[], &[], &[], None),
        ];
        for (entrypoint, cmd, command, expected) in cases {
            let image = ImageConfig {
                entrypoint: strings(entrypoint),
                cmd: strings(cmd),
                ..ImageConfig::default()
            };
            let expected = expected.map(strings).ok_or(StartError::NoCommand);
            assert_eq!(arguments(&image, &strings(command)), expected);
        }
    }

    #[test]
    fn working_directory_of_request_image_or_root() {
        let cases = [
            (None, None, "/", false),
            (Some("/w"), None, "/w", false),
            (Some("/w"), Some(""), "/w", false),
            (Some("/w"), Some("."), "/w", false),
            (Some("w"), None, "/w", false),
            (Some("/w"), Some("/x"), "/x", true),
        ];
        for (image_dir, cwd, expected, is_requested) in cases {
            let image = ImageConfig {
                working_dir: image_dir.map(str::to_owned),
                ..ImageConfig::default()
            };
            assert_eq!(
                working_directory(&image, cwd),
                (expected.to_owned(), is_requested)
            );
        }
    }

    #[test]
    fn the_request_has_the_last_word_on_variables() {
        let image = ImageConfig {
            env: strings(&["PATH=/bin", "A=image", "B=image", "C=a=b"]),
            ..ImageConfig::default()
        };
        let given = BTreeMap::from([("B".to_owned(), "given".to_owned())]);
        let granted = [("A".to_owned(), "granted".to_owned())];
        let all = environment(&image, "host", "/root", &granted, &given);
        for (name, value) in [
            ("PATH", "/bin"),
            ("A", "granted"),
            ("B", "given"),
            ("C", "a=b"),
            ("HOME", "/root"),
            ("HOSTNAME", "host"),
        ] {
            assert_eq!(variable(&all, name), Some(value), "{name}");
        }
        assert_eq!(variable(&all, "HO"), None);
    }
}

//! Templates of what a scheduler is told, with the substitutions of `Containers.SLURM.SbatchArgumentsList`.
//!
//! | token | value |
//! |---|---|
//! | `%U` | container uuid |
//! | `%C` | CPUs |
//! | `%M` | MiB of memory, cache and crunch-run's reserve included |
//! | `%T` | MiB of disk: `tmp` mounts, a guess at the image, and the cache of inputs |
//! | `%G` | GPUs |
//! | `%W` | minutes of the run time limit; what has it is left out where there is no limit |
//! | `%P` | partitions, joined by commas; what has it is left out where none is asked for |
//! | `%I` | the cheapest instance type that suits; empty where none are configured |
//! | `%%` | `%` |

use arvados_client::ContainerUuid;

use crate::needs::Needs;

const MIB: u64 = 1 << 20;

/// A `%` and a letter that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown substitution {token} in {template:?}; known are %U %C %M %T %G %W %P %I %%")]
pub struct TemplateError {
    token: String,
    template: String,
}

/// What is substituted.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    /// `%U`
    pub container: &'a ContainerUuid,
    /// `%C %M %T %G %W %P`
    pub needs: &'a Needs,
    /// `%I`
    pub instance_type: &'a str,
}

/// What a letter stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// This.
    Is(String),
    /// Something that the container does not ask for.
    NotAsked,
    /// Nothing.
    Unknown,
}

impl Values<'_> {
    /// What this letter stands for.
    pub fn of(self, letter: char) -> Value {
        let needs = self.needs;
        Value::Is(match letter {
            'U' => self.container.to_string(),
            'C' => needs.cpus.to_string(),
            'M' => needs.ram.div_ceil(MIB).to_string(),
            'T' => needs.disk().div_ceil(MIB).to_string(),
            'G' => needs.gpus.to_string(),
            'W' => match needs.max_run_time {
                Some(seconds) => seconds.div_ceil(60).to_string(),
                None => return Value::NotAsked,
            },
            'P' if needs.partitions.is_empty() => return Value::NotAsked,
            'P' => needs.partitions.join(","),
            'I' => self.instance_type.to_owned(),
            _ => return Value::Unknown,
        })
    }
}

/// One text; none if it speaks of something that the container does not ask for.
pub fn render(template: &str, values: Values<'_>) -> Result<Option<String>, TemplateError> {
    fill(template, |letter| values.of(letter))
}

/// The same, where letters stand for what `value` says.
pub fn fill(
    template: &str,
    value: impl Fn(char) -> Value,
) -> Result<Option<String>, TemplateError> {
    let mut filled = String::with_capacity(template.len());
    let mut characters = template.chars();
    while let Some(c) = characters.next() {
        if c != '%' {
            filled.push(c);
            continue;
        }
        let letter = characters.next();
        match letter.map_or(Value::Unknown, &value) {
            _ if letter == Some('%') => filled.push('%'),
            Value::Is(text) => filled.push_str(&text),
            Value::NotAsked => return Ok(None),
            Value::Unknown => {
                return Err(TemplateError {
                    token: letter.map_or_else(|| "%".into(), |c| format!("%{c}")),
                    template: template.to_owned(),
                });
            }
        }
    }
    Ok(Some(filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substitutions() {
        let container = ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap();
        let needs = Needs {
            cpus: 4,
            ram: 11_701 * MIB - 1,
            scratch: 45_777 * MIB,
            gpus: 2,
            max_run_time: Some(61),
            partitions: vec!["a".into(), "b".into()],
            ..Needs::default()
        };
        let bare = Needs {
            cpus: 1,
            ..Needs::default()
        };
        #[rustfmt::skip]
        let rows = [
            (&needs, "--job-name=%U", Ok(Some("--job-name=zzzzz-dz642-queuedcontainer"))),
            (&needs, "--mem=%M", Ok(Some("--mem=11701"))),
            (&needs, "-c%C/%T/%G", Ok(Some("-c4/45777/2"))),
            (&needs, "--time=%W", Ok(Some("--time=2"))),
            (&needs, "--partition=%P", Ok(Some("--partition=a,b"))),
            (&needs, "100%%", Ok(Some("100%"))),
            (&bare, "--time=%W", Ok(None)),
            (&bare, "--partition=%P", Ok(None)),
            (&needs, "-C%I", Ok(Some("-Ca1"))),
            (&bare, "--x=%J", Err("%J")),
            (&bare, "--bad% template", Err("% ")),
            (&bare, "100%", Err("%")),
        ];
        for (needs, argument, expected) in rows {
            let got = render(
                argument,
                Values {
                    container: &container,
                    needs,
                    instance_type: "a1",
                },
            );
            let got = got.map_err(|error| error.token);
            let expected = expected
                .map(|text| text.map(str::to_owned))
                .map_err(str::to_owned);
            assert_eq!(got, expected, "{argument}");
        }
    }
}

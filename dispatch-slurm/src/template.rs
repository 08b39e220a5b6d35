//! sbatch's arguments from templates, with the substitutions of `Containers.SLURM.SbatchArgumentsList`.
//!
//! | token | value |
//! |---|---|
//! | `%U` | container uuid |
//! | `%C` | CPUs |
//! | `%M` | MiB of memory, cache and crunch-run's reserve included |
//! | `%T` | MiB of disk: `tmp` mounts, a guess at the image, and the cache of inputs |
//! | `%G` | GPUs |
//! | `%W` | minutes of the run time limit; an argument with it is left out where there is no limit |
//! | `%P` | partitions, joined by commas; an argument with it is left out where none is asked for |
//! | `%I` | the cheapest instance type that suits; empty where none are configured |
//! | `%%` | `%` |

use arvados_client::ContainerUuid;
use dispatch_core::needs::Needs;

const MIB: u64 = 1 << 20;

/// A `%` and a letter that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown substitution {token} in the sbatch argument {argument:?}; known are %U %C %M %T %G %W %P %I %%"
)]
pub struct TemplateError {
    token: String,
    argument: String,
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

/// One argument; none if it speaks of something that the container does not ask for.
pub fn render(argument: &str, values: Values<'_>) -> Result<Option<String>, TemplateError> {
    let needs = values.needs;
    let mut rendered = String::with_capacity(argument.len());
    let mut characters = argument.chars();
    while let Some(c) = characters.next() {
        if c != '%' {
            rendered.push(c);
            continue;
        }
        match characters.next() {
            Some('%') => rendered.push('%'),
            Some('U') => rendered.push_str(values.container.as_str()),
            Some('C') => rendered.push_str(&needs.cpus.to_string()),
            Some('M') => rendered.push_str(&needs.ram.div_ceil(MIB).to_string()),
            Some('T') => rendered.push_str(&needs.disk().div_ceil(MIB).to_string()),
            Some('G') => rendered.push_str(&needs.gpus.to_string()),
            Some('W') => match needs.max_run_time {
                Some(seconds) => rendered.push_str(&seconds.div_ceil(60).to_string()),
                None => return Ok(None),
            },
            Some('P') if needs.partitions.is_empty() => return Ok(None),
            Some('P') => rendered.push_str(&needs.partitions.join(",")),
            Some('I') => rendered.push_str(values.instance_type),
            other => {
                return Err(TemplateError {
                    token: other.map_or_else(|| "%".into(), |c| format!("%{c}")),
                    argument: argument.to_owned(),
                });
            }
        }
    }
    Ok(Some(rendered))
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

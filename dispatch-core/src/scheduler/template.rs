//! Renders templates of scheduler arguments and attributes.
//!
//! Input: a template, and the values of one container. Output: the text, or an error for an unknown
//! letter. The substitutions are those of `Containers.SLURM.SbatchArgumentsList`:
//!
//! | token | value |
//! |---|---|
//! | `%U` | container uuid |
//! | `%C` | CPUs |
//! | `%M` | MiB of memory, cache and crunch-run's reserve included |
//! | `%T` | MiB of disk: `tmp` mounts, a guess at the image, and the cache of inputs |
//! | `%G` | GPUs |
//! | `%W` | minutes of the run time limit; no text is rendered without a limit |
//! | `%P` | partitions, joined by commas; no text is rendered if none is requested |
//! | `%N` | name of the GPU model; no text is rendered if none is requested or known |
//! | `%u` | user name; no text is rendered if it is not known |
//! | `%g` | uuid of the project; no text is rendered for a home project |
//! | `%I` | the cheapest instance type that fits; empty if none are configured |
//! | `%%` | `%` |

use std::cell::Cell;

use arvados_client::{ContainerUuid, GroupUuid};

use crate::model::owner::Owner;
use crate::model::resources::ResourceRequest;

const MIB: u64 = 1 << 20;

/// Error: a `%` with a letter that is no substitution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown substitution {token} in {template:?}; known are %U %C %M %T %G %W %P %I %N %u %g %%"
)]
pub struct TemplateError {
    token: String,
    template: String,
}

/// The values to substitute.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    /// Value of `%U`.
    pub container: &'a ContainerUuid,
    /// Source of `%C %M %T %G %W %P %u %g`.
    pub needs: &'a ResourceRequest,
    /// Value of `%I`.
    pub instance_type: &'a str,
    /// Value of `%N`.
    pub gpu_model: Option<&'a str>,
}

/// The value of a letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Substitution {
    /// The given text.
    Is(String),
    /// A limit or partition that the container does not request.
    NotAsked,
    /// The letter is unknown.
    Unknown,
}

impl Values<'_> {
    /// The value of `letter`.
    pub fn of(self, letter: char) -> Substitution {
        let needs = self.needs;
        Substitution::Is(match letter {
            'U' => self.container.to_string(),
            'C' => needs.cpus.to_string(),
            'M' => needs.ram.div_ceil(MIB).to_string(),
            'T' => needs.disk().div_ceil(MIB).to_string(),
            'G' => needs.gpus.to_string(),
            'W' => match needs.max_run_time {
                Some(seconds) => seconds.div_ceil(60).to_string(),
                None => return Substitution::NotAsked,
            },
            'P' if needs.partitions.is_empty() => return Substitution::NotAsked,
            'P' => needs.partitions.join(","),
            'u' | 'g' => match owner_value(letter, needs.charged_owner()) {
                Some(value) => value.to_owned(),
                None => return Substitution::NotAsked,
            },
            'N' => match self.gpu_model {
                Some(model) => model.to_owned(),
                None => return Substitution::NotAsked,
            },
            'I' => self.instance_type.to_owned(),
            _ => return Substitution::Unknown,
        })
    }
}

/// The value of `%u` or `%g`.
pub fn owner_value(letter: char, owner: Option<&Owner>) -> Option<&str> {
    match letter {
        'u' => owner?.plain_username(),
        'g' => owner?.project.as_ref().map(GroupUuid::as_str),
        _ => None,
    }
}

/// Whether a template has `%u` or `%g`.
pub fn uses_owner(template: &str) -> bool {
    let uses = Cell::new(false);
    let value = |letter: char| {
        uses.set(uses.get() || matches!(letter, 'u' | 'g'));
        Substitution::Is(String::new())
    };
    let _ = render_with(template, value);
    uses.get()
}

/// What `templates` say of an owner: with its values of `%u` and `%g`, and with all other
/// substitutions as they stand. Equal for two owners whose jobs are charged alike.
pub fn account_of(templates: &[&str], owner: Option<&Owner>) -> String {
    let value = |letter: char| match (letter, owner_value(letter, owner)) {
        ('u' | 'g', None) => Substitution::NotAsked,
        (_, Some(value)) => Substitution::Is(value.to_owned()),
        (letter, None) => Substitution::Is(format!("%{letter}")),
    };
    let templates = templates.iter();
    let filled = templates.filter_map(|template| render_with(template, value).ok().flatten());
    filled.collect::<Vec<_>>().join(" ")
}

/// Renders one template. None if it uses a limit or partition that the container does not request.
pub fn render(template: &str, values: Values<'_>) -> Result<Option<String>, TemplateError> {
    render_with(template, |letter| values.of(letter))
}

/// Renders one template with the values that `value` returns for letters.
pub fn render_with(
    template: &str,
    value: impl Fn(char) -> Substitution,
) -> Result<Option<String>, TemplateError> {
    let mut filled = String::with_capacity(template.len());
    let mut characters = template.chars();
    while let Some(c) = characters.next() {
        if c != '%' {
            filled.push(c);
            continue;
        }
        let letter = characters.next();
        match letter.map_or(Substitution::Unknown, &value) {
            _ if letter == Some('%') => filled.push('%'),
            Substitution::Is(text) => filled.push_str(&text),
            Substitution::NotAsked => return Ok(None),
            Substitution::Unknown => {
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
    use std::sync::Arc;

    use super::*;
    use crate::model::owner::Charge;

    #[test]
    fn a_template_with_an_owner_is_known() {
        for (template, expected) in [
            ("--account=%u", true),
            ("--wckey=%g", true),
            ("--comment=100%%u", false),
            ("--x=%U/%G", false),
        ] {
            assert_eq!(uses_owner(template), expected, "{template}");
        }
    }

    #[test]
    fn substitutions() {
        let container = ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap();
        let ada = Owner {
            username: Some("ada".into()),
            project: GroupUuid::parse("zzzzz-j7d0g-000000000000001").ok(),
            ..Owner::default()
        };
        let needs = ResourceRequest {
            cpus: 4,
            ram: 11_701 * MIB - 1,
            scratch: 45_777 * MIB,
            gpus: 2,
            max_run_time: Some(61),
            partitions: vec!["a".into(), "b".into()],
            charged_to: Some(Arc::new(Charge::new(Some(Arc::new(ada)), String::new()))),
            ..ResourceRequest::default()
        };
        let bare = ResourceRequest {
            cpus: 1,
            ..ResourceRequest::default()
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
            (&needs, "--gpus=%N:%G", Ok(Some("--gpus=a100:2"))),
            (&bare, "--gpus=%N:%G", Ok(None)),
            (&needs, "-C%I", Ok(Some("-Ca1"))),
            (&needs, "--wckey=%u@%g", Ok(Some("--wckey=ada@zzzzz-j7d0g-000000000000001"))),
            (&bare, "--wckey=%u", Ok(None)),
            (&bare, "--wckey=%g", Ok(None)),
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
                    gpu_model: (needs.gpus > 0).then_some("a100"),
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

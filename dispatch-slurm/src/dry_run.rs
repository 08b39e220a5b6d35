//! What sbatch would be told for a container, and where each value comes from. Nothing is submitted, and no secret is
//! shown: the token is in a file, which the script names.

use std::collections::BTreeMap;
use std::fmt::Write;

use arvados_client::records::Container;
use dispatch_core::attempt_dir::{AttemptDir, token_name};
use dispatch_core::config::{Origin, Origins};
use dispatch_core::home::Home;
use dispatch_core::needs::Needs;
use serde::Serialize;

use crate::settings::Settings;
use crate::squeue;
use crate::submission::{Job, Source};

/// What would be handed to sbatch.
#[derive(Debug, Serialize)]
pub struct DryRun {
    arguments: Vec<Explained>,
    values: Vec<Explained>,
    environment: BTreeMap<String, String>,
    script: String,
}

/// Something, and where it comes from.
#[derive(Debug, Serialize)]
struct Explained {
    value: String,
    from: String,
}

/// For this record, as the service would submit it; `reserve` is the memory set aside for crunch-run.
pub fn dry_run(
    container: &Container,
    reserve: u64,
    settings: &Settings,
    home: &Home,
    origins: &Origins,
) -> Result<DryRun, Box<dyn std::error::Error>> {
    let needs = Needs::of(container).and_ram(reserve);
    let dir = AttemptDir::of(home.path(), &container.uuid);
    // It is made with the attempt.
    let attempt = container.uuid.to_string().replacen("dz642", "gj3su", 1);
    let attempt = arvados_client::TokenUuid::parse(&attempt)?;
    let label = home.known_label();
    let comment = squeue::comment(&attempt, label.as_deref().unwrap_or("LABEL"));
    let arguments = settings.sbatch(Job {
        container: &container.uuid,
        needs: &needs,
        comment: &comment,
        output: &dir.output_file(),
        avoid: &[],
    })?;
    let token_file = dir.token_file_of(&attempt);
    let script = settings.script(&container.uuid, &token_file)?;
    let named = |text: String| {
        text.replace(&token_name(&attempt), "token-ATTEMPT")
            .replace(attempt.as_str(), "ATTEMPT")
    };
    let explained = arguments.into_iter().map(|argument| Explained {
        value: named(argument.text),
        from: words(&argument.from, origins),
    });
    Ok(DryRun {
        arguments: explained.collect(),
        values: values(container, reserve, &needs),
        environment: settings.environment.iter().map(shown).collect(),
        script: named(script),
    })
}

fn words(source: &Source, origins: &Origins) -> String {
    let (flag, value) = match source {
        Source::Always(why) => return format!("always: {why}"),
        Source::Set { flag, value } => (*flag, value),
    };
    let name = match flag {
        "arguments" => "sbatch-argument".to_owned(),
        "gpu_arguments" => "sbatch-gpu-argument".to_owned(),
        other => other.replace('_', "-"),
    };
    match origins.of(flag) {
        Origin::Flag => format!("--{name}: {value}"),
        Origin::File(key) => format!("{key}: {value}"),
        Origin::Default => format!("default of --{name}: {value}"),
    }
}

/// The numbers that templates are filled with.
fn values(container: &Container, reserve: u64, needs: &Needs) -> Vec<Explained> {
    const MIB: u64 = 1 << 20;
    let wants = &container.runtime_constraints;
    let explained = |value: String, from: String| Explained { value, from };
    let (ram, cache) = (wants.ram, wants.keep_cache_ram);
    let (tmp, image, disk) = (needs.scratch, needs.image, needs.cache_disk);
    let mut all = vec![
        explained(
            format!("%M = {} MiB", needs.ram.div_ceil(MIB)),
            format!("ram {ram}, keep_cache_ram {cache}, ReserveExtraRAM {reserve} bytes"),
        ),
        explained(
            format!("%T = {} MiB", needs.disk().div_ceil(MIB)),
            format!(
                "tmp mounts {tmp}, the image perhaps {image} twice (once in the mounts if there is room), keep_cache_disk {disk} bytes"
            ),
        ),
    ];
    if let Some(seconds) = needs.max_run_time {
        let value = format!("%W = {} min", seconds.div_ceil(60));
        all.push(explained(value, format!("max_run_time {seconds} s")));
    }
    all
}

/// A variable whose name speaks of a secret may have one.
fn shown((name, value): (&String, &String)) -> (String, String) {
    let upper = name.to_uppercase();
    let secret = ["TOKEN", "SECRET", "PASSW", "CREDENTIAL", "_KEY"]
        .iter()
        .any(|word| upper.contains(word));
    let value = if secret { "…" } else { value };
    (name.clone(), value.to_owned())
}

impl DryRun {
    /// For people.
    pub fn text(&self) -> String {
        let all = self.arguments.iter().chain(&self.values);
        let width = all.map(|line| line.value.len()).max().unwrap_or(0).min(60);
        let mut page = "sbatch\n".to_owned();
        // A string never refuses to be written to.
        for Explained { value, from } in &self.arguments {
            let _ = writeln!(page, "  {value:width$}  # {from}");
        }
        page += "values\n";
        for Explained { value, from } in &self.values {
            let _ = writeln!(page, "  {value:width$}  # {from}");
        }
        page += "environment\n";
        for (name, value) in &self.environment {
            let _ = writeln!(page, "  {name}={value}");
        }
        let _ = write!(page, "script\n{}", self.script);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_may_be_secret_is_not_shown() {
        let show = |name: &str| shown((&name.to_owned(), &"value".to_owned())).1;
        for name in ["S3_SECRET_X", "my_token", "AWS_ACCESS_KEY_ID", "PGPASSWORD"] {
            assert_eq!(show(name), "…", "{name}");
        }
        for name in ["ARVADOS_KEEP_SERVICES", "ARVADOS_API_HOST"] {
            assert_eq!(show(name), "value", "{name}");
        }
    }

    #[test]
    fn where_a_value_comes_from_is_told() {
        let set = Source::Set {
            flag: "gpu_arguments",
            value: "--gpus=%G".into(),
        };
        assert_eq!(
            words(&set, &Origins::default()),
            "default of --sbatch-gpu-argument: --gpus=%G"
        );
        assert_eq!(
            words(&Source::Always("so"), &Origins::default()),
            "always: so"
        );
    }
}

//! What sbatch is told: its arguments and its script. No secret is in either.

use std::path::Path;

use arvados_client::ContainerUuid;
use dispatch_core::needs::Needs;

use crate::template::{TemplateError, Values, render};

/// Arguments for every container, where the admin gives none.
pub const ARGUMENTS: [&str; 6] = [
    "--job-name=%U",
    "--mem=%M",
    "--cpus-per-task=%C",
    "--tmp=%T",
    "--time=%W",
    "--partition=%P",
];
/// More for those that ask for GPUs.
pub const GPU_ARGUMENTS: [&str; 1] = ["--gpus=%G"];

/// What the admin set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Templates for every container.
    pub arguments: Vec<String>,
    /// Templates for those that ask for GPUs.
    pub gpu_arguments: Vec<String>,
    /// crunch-run and its arguments, as on the nodes.
    pub crunch_run: Vec<String>,
}

impl Settings {
    /// Whether every template can be rendered; the error is for the admin, at the start.
    pub fn check(&self) -> Result<(), TemplateError> {
        let (container, needs) = (ContainerUuid::generate("zzzzz"), Needs::default());
        let values = Values {
            container: &container,
            needs: &needs,
        };
        self.arguments
            .iter()
            .chain(&self.gpu_arguments)
            .try_for_each(|argument| render(argument, values).map(drop))
    }

    /// The arguments of sbatch. The job's name and comment are ours: by them it is found again.
    pub fn sbatch(
        &self,
        values: Values<'_>,
        comment: &str,
        output: &Path,
        avoid: &[String],
    ) -> Result<Vec<String>, TemplateError> {
        let mut arguments = vec![
            "--parsable".to_owned(),
            "--no-requeue".to_owned(),
            "--nice=10000".to_owned(),
            "--open-mode=append".to_owned(),
            // %j and the like are sbatch's own patterns in this one.
            format!("--output={}", output.to_string_lossy().replace('%', "%%")),
            "--chdir=/".to_owned(),
        ];
        // An admin's own comes later and replaces it.
        if !avoid.is_empty() {
            arguments.push(format!("--exclude={}", avoid.join(",")));
        }
        let gpus = self.gpu_arguments.iter().filter(|_| values.needs.gpus > 0);
        for template in self.arguments.iter().chain(gpus) {
            arguments.extend(render(template, values)?);
        }
        arguments.push(format!("--job-name={}", values.container));
        arguments.push(format!("--comment={comment}"));
        Ok(arguments)
    }

    /// The job script. crunch-run takes the place of the shell, so that signals to the batch step reach it.
    pub fn script(
        &self,
        container: &ContainerUuid,
        token_file: &Path,
    ) -> Result<String, shlex::QuoteError> {
        let token_file = token_file.to_string_lossy();
        let words = self.crunch_run.iter().map(String::as_str).chain([
            "--token-file",
            &token_file,
            container.as_str(),
        ]);
        Ok(format!("#!/bin/sh\nexec {}\n", shlex::try_join(words)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Settings {
            arguments: owned(&ARGUMENTS),
            gpu_arguments: owned(&GPU_ARGUMENTS),
            crunch_run: owned(&["/opt/it's/crunch-run", "--runtime-engine=auto"]),
        }
    }

    #[test]
    fn a_plain_container() {
        let container = ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap();
        let needs = Needs {
            cpus: 2,
            ram: 1 << 30,
            gpus: 1,
            ..Needs::default()
        };
        let values = Values {
            container: &container,
            needs: &needs,
        };
        let arguments = settings()
            .sbatch(
                values,
                "attempt label",
                Path::new("/shared/100%/output.log"),
                &["n1".into(), "n2".into()],
            )
            .unwrap();
        assert_eq!(
            arguments,
            [
                "--parsable",
                "--no-requeue",
                "--nice=10000",
                "--open-mode=append",
                "--output=/shared/100%%/output.log",
                "--chdir=/",
                "--exclude=n1,n2",
                "--job-name=zzzzz-dz642-queuedcontainer",
                "--mem=1024",
                "--cpus-per-task=2",
                "--tmp=0",
                "--gpus=1",
                "--job-name=zzzzz-dz642-queuedcontainer",
                "--comment=attempt label",
            ]
        );
        let script = settings()
            .script(&container, Path::new("/shared/my dir/token"))
            .unwrap();
        assert_eq!(
            script,
            "#!/bin/sh\nexec \"/opt/it's/crunch-run\" '--runtime-engine=auto' --token-file '/shared/my dir/token' zzzzz-dz642-queuedcontainer\n"
        );
    }

    #[test]
    fn a_wrong_template_is_found_at_the_start() {
        let mut settings = settings();
        assert_eq!(settings.check(), Ok(()));
        settings.gpu_arguments.push("--gres=%Z".into());
        let error = settings.check().unwrap_err().to_string();
        assert!(
            error.contains("%Z") && error.contains("--gres=%Z"),
            "{error}"
        );
    }
}

//! What the admin set, by flags or in the configuration file.

use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::command::Command;
use dispatch_core::config::{Config, Given, list, one};
use dispatch_core::instance_types::{InstanceType, NoneSuits, fit, name_for};
use dispatch_core::needs::{Fit, Needs};
use dispatch_core::template::{TemplateError, Values, render};

/// The partition that stands for any that is not named.
const ANY: &str = "*";

/// What the admin set.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Templates for every container.
    pub arguments: Vec<String>,
    /// Templates for those that ask for GPUs.
    pub gpu_arguments: Vec<String>,
    /// crunch-run and its arguments, as on the nodes.
    pub crunch_run: Vec<String>,
    /// Who pays.
    pub account: PerPartition,
    /// Quality of service.
    pub qos: PerPartition,
    /// Reservation.
    pub reservation: PerPartition,
    /// Features of nodes.
    pub constraint: PerPartition,
    /// Which cluster, where it is not this machine's own.
    pub clusters: Option<String>,
    /// For sbatch, and so for the job.
    pub environment: BTreeMap<String, String>,
    /// Equal containers go out as arrays.
    pub arrays: bool,
    /// Kinds of nodes; none: there are no kinds.
    pub types: Vec<InstanceType>,
    /// Minutes for fetching inputs and saving results, on top of a run time limit.
    pub staging_minutes: u64,
    /// Seconds before its end at which a job is told; 0: it is not.
    pub warning_seconds: u64,
}

/// A template for each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PerPartition(BTreeMap<String, String>);

impl PerPartition {
    /// From `VALUE` and `PARTITION:VALUE`; the later of two for one partition holds.
    pub fn of(given: &[String]) -> Self {
        Self(given.iter().map(|text| split(text)).collect())
    }

    /// For a container that may run in these partitions: sbatch takes one, so the first decides.
    pub fn value(&self, partitions: &[String]) -> Option<&str> {
        let named = partitions.first().and_then(|first| self.0.get(first));
        named.or_else(|| self.0.get(ANY)).map(String::as_str)
    }

    fn templates(&self) -> impl Iterator<Item = &String> {
        self.0.values()
    }
}

/// What is before a colon is a partition only if it could be one's name: constraints have colons of their own.
fn split(text: &str) -> (String, String) {
    let is_name = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        name == ANY || (!name.is_empty() && name.chars().all(plain))
    };
    match text.split_once(':') {
        Some((partition, value)) if is_name(partition) => (partition.into(), value.into()),
        _ => (ANY.into(), text.into()),
    }
}

/// Why the settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Several clusters.
    #[error(
        "--clusters={0} is not the name of one cluster: run a dispatch-slurm with a --shared-dir of its own for each"
    )]
    Clusters(String),
    /// Only sbatch would be told.
    #[error(
        "{0} sends jobs to a cluster that the other commands do not ask: take it out and say --clusters (SLURM.Clusters)"
    )]
    ElsewhereOnly(String),
}

/// What sends jobs to another cluster.
const ELSEWHERE: [&str; 2] = ["SBATCH_CLUSTERS", "SLURM_CLUSTERS"];

/// `--clusters`, and what of it is enough for sbatch: `--clu`.
fn names_a_cluster(argument: &str) -> bool {
    let option = argument.split('=').next().unwrap_or_default();
    let is_long = option.len() >= "--clu".len() && "--clusters".starts_with(option);
    is_long
        || "--cluster".starts_with(option) && option.len() >= "--clu".len()
        || argument.starts_with("-M")
}

impl Settings {
    /// Whether every template can be rendered; the error is for the admin, at the start.
    pub fn check(&self) -> Result<(), SettingsError> {
        // Numbers of jobs are those of one cluster, and `all` are as many as there are.
        if let Some(name) = &self.clusters
            && (name.is_empty() || name == "all" || name.contains(','))
        {
            return Err(SettingsError::Clusters(name.clone()));
        }
        let arguments = self.arguments.iter().chain(&self.gpu_arguments);
        if let Some(argument) = arguments.clone().find(|argument| names_a_cluster(argument)) {
            return Err(SettingsError::ElsewhereOnly(argument.clone()));
        }
        if let Some(name) = ELSEWHERE
            .iter()
            .find(|name| self.environment.contains_key(**name))
        {
            return Err(SettingsError::ElsewhereOnly((*name).to_owned()));
        }
        let (container, needs) = (ContainerUuid::generate("zzzzz"), Needs::default());
        let values = Values {
            container: &container,
            needs: &needs,
            instance_type: "",
        };
        let keys = [
            &self.account,
            &self.qos,
            &self.reservation,
            &self.constraint,
        ];
        keys.into_iter()
            .flat_map(PerPartition::templates)
            .chain(arguments)
            .try_for_each(|argument| render(argument, values).map(drop))?;
        Ok(())
    }

    /// The name of the cheapest kind of node for it; empty where there are no kinds.
    pub fn instance_type(&self, needs: &Needs) -> Result<&str, NoneSuits> {
        name_for(&self.types, needs)
    }

    /// Whether any kind of node would do. Slurm queues what does not fit now.
    pub fn fit(&self, needs: &Needs) -> Fit {
        fit(&self.types, needs)
    }

    /// What every Slurm command is told where another cluster than this machine's own is meant.
    pub fn cluster_arguments(&self) -> Vec<String> {
        let cluster = self.clusters.iter();
        cluster.map(|name| format!("--clusters={name}")).collect()
    }

    /// One of Slurm's commands, about the cluster that is meant: another one has other jobs under the same numbers.
    pub fn client(&self, program: &str) -> Command {
        Command::new(program).args(self.cluster_arguments())
    }
}

/// What the configuration file says, by our flags.
pub fn given(config: &Config) -> Vec<Given> {
    let containers = &config.cluster.containers;
    let slurm = &containers.slurm;
    let map = |flag, key, values: &BTreeMap<String, String>| {
        let values: Vec<String> = values.iter().map(|(p, v)| format!("{p}:{v}")).collect();
        (!values.is_empty()).then_some(Given { flag, key, values })
    };
    #[rustfmt::skip]
    let ours = [
        list("arguments", "Containers.SLURM.SbatchArgumentsList", slurm.sbatch_arguments_list.clone()),
        list("gpu_arguments", "Containers.SLURM.SbatchGPUArgumentsList", slurm.sbatch_gpu_arguments_list.clone()),
        one("priority_spread", "Containers.SLURM.PrioritySpread", slurm.priority_spread.map(|spread| spread.to_string())),
        one("clusters", "Containers.SLURM.Clusters", slurm.clusters.clone()),
        map("account", "Containers.SLURM.Account", &slurm.account),
        map("qos", "Containers.SLURM.QOS", &slurm.qos),
        map("reservation", "Containers.SLURM.Reservation", &slurm.reservation),
        map("constraint", "Containers.SLURM.Constraint", &slurm.constraint),
        config.crunch_run("crunch-run"),
    ];
    ours.into_iter().flatten().chain(config.common()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn a_value_is_for_its_partition_or_for_all_others() {
        let given = PerPartition::of(&owned(&["lab", "gpu:lab-gpu", "a b:c", "*:other"]));
        #[rustfmt::skip]
        let rows = [
            (&[][..], Some("other")),
            (&["gpu"], Some("lab-gpu")),
            (&["gpu", "cpu"], Some("lab-gpu")),
            (&["cpu", "gpu"], Some("other")),
        ];
        for (partitions, expected) in rows {
            assert_eq!(given.value(&owned(partitions)), expected, "{partitions:?}");
        }
        let one = PerPartition::of(&owned(&["gpu:x"]));
        assert_eq!(one.value(&owned(&["cpu"])), None);
        let constraint = PerPartition::of(&owned(&["[rack1&(a:b)]"]));
        assert_eq!(constraint.value(&[]), Some("[rack1&(a:b)]"));
    }

    #[test]
    fn a_wrong_template_is_found_at_the_start() {
        let mut settings = Settings::default();
        assert_eq!(settings.check(), Ok(()));
        settings.gpu_arguments.push("--gres=%Z".into());
        let error = settings.check().unwrap_err().to_string();
        assert!(
            error.contains("%Z") && error.contains("--gres=%Z"),
            "{error}"
        );
        let settings = Settings {
            constraint: PerPartition::of(&owned(&["instancetype=%Y"])),
            ..Settings::default()
        };
        assert!(settings.check().unwrap_err().to_string().contains("%Y"));
    }

    #[test]
    fn every_command_is_about_the_cluster_that_is_meant() {
        let named = |name: &str| Settings {
            clusters: Some(name.into()),
            ..Settings::default()
        };
        let east = format!("{:?}", named("east").client("scancel").args(["12"]));
        assert!(east.contains(r#"["--clusters=east", "12"]"#), "{east}");
        let own = format!("{:?}", Settings::default().client("scancel"));
        assert!(!own.contains("--clusters"), "{own}");
        assert_eq!(named("east").check(), Ok(()));
        for several in ["east,west", "all", ""] {
            let error = named(several).check().unwrap_err().to_string();
            assert!(error.contains("of its own for each"), "{error}");
        }
    }

    #[test]
    fn what_sends_jobs_to_another_cluster_is_refused() {
        for argument in ["--clusters=west", "--cluster=west", "--clu", "-M", "-Mwest"] {
            let settings = Settings {
                gpu_arguments: owned(&[argument]),
                ..Settings::default()
            };
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(argument), "{error}");
        }
        let settings = Settings {
            environment: BTreeMap::from([("SBATCH_CLUSTERS".into(), "west".into())]),
            ..Settings::default()
        };
        assert!(settings.check().is_err());
        let settings = Settings {
            arguments: owned(&["--mem=%M", "--cluster-constraint=x", "--cpus-per-task=%C"]),
            ..Settings::default()
        };
        assert_eq!(settings.check(), Ok(()));
    }

    #[test]
    fn the_file_says_what_flags_say() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = "Clusters: {zzzzz: {Containers: {CrunchRunCommand: x-crunch-run, CrunchRunArgumentsList: ['--a=b c'],
            RuntimeEngine: podman, MinRetryPeriod: 13s, SLURM: {SbatchGPUArgumentsList: [], Account: {gpu: x, '*': y},
            Clusters: 'a,b'}}}}";
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let given = given(&Config::read(file.path()).unwrap());
        let said: Vec<_> = given
            .iter()
            .map(|given| (given.flag, given.values.join(" ")))
            .collect();
        assert_eq!(
            said,
            [
                ("gpu_arguments", String::new()),
                ("clusters", "a,b".to_owned()),
                ("account", "*:y gpu:x".to_owned()),
                (
                    "crunch_run",
                    "x-crunch-run '--a=b c' '--runtime-engine=podman'".to_owned()
                ),
                ("min_retry_period", "13000ms".to_owned()),
            ]
        );
    }
}

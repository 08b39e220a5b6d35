//! Settings of dispatch-slurm, from flags or the configuration file.
//!
//! Output: checked templates and options for `sbatch`, and the cluster that all commands address.

use std::collections::BTreeMap;
use std::sync::Arc;

use arvados_client::ContainerUuid;
use dispatch_core::config::{Config, FileDefault, Form, Key};
use dispatch_core::model::instance_types::InstanceType;
use dispatch_core::model::owner::{Charge, KnownOwner};
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::model::staging_allowance::StagingAllowance;
use dispatch_core::scheduler::command::Command;
use dispatch_core::scheduler::owner_map::{self, OwnerMap};
use dispatch_core::scheduler::template::{TemplateError, Values, render, uses_owner};

use crate::submit::reserved_options;

/// Partition name that stands for all partitions without a value of their own.
const ANY_PARTITION: &str = "*";

/// Settings of the admin.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Templates of sbatch arguments for every container.
    pub arguments: Vec<String>,
    /// Templates of sbatch arguments for containers that request GPUs.
    pub gpu_arguments: Vec<String>,
    /// Templates of sbatch arguments for preemptible containers.
    pub preemptible_arguments: Vec<String>,
    /// Names of GPU models by the hardware targets that containers request.
    pub gpu_models: BTreeMap<String, String>,
    /// Templates of sbatch arguments by user and project.
    pub owner_map: Option<Arc<OwnerMap>>,
    /// crunch-run and its arguments, as on the nodes.
    pub crunch_run: Vec<String>,
    /// Account that jobs are charged to.
    pub account: PerPartition,
    pub qos: PerPartition,
    pub reservation: PerPartition,
    /// Features that nodes must have.
    pub constraint: PerPartition,
    /// Cluster to submit to; none means the cluster of this machine.
    pub clusters: Option<String>,
    /// Environment of sbatch, which the job inherits.
    pub environment: BTreeMap<String, String>,
    /// Distance of pending jobs in Slurm's priority.
    pub priority_spread: i64,
    /// Whether equal containers are submitted as arrays.
    pub arrays: bool,
    /// Instance types of nodes; may be empty.
    pub types: Vec<InstanceType>,
    /// Time added to a run time limit, for fetching inputs and saving results.
    pub staging: StagingAllowance,
    /// Seconds before its time limit at which a job is signaled; 0 disables the signal.
    pub warning_seconds: u64,
}

/// A template for each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PerPartition(BTreeMap<String, String>);

impl PerPartition {
    /// Parses `VALUE` and `PARTITION:VALUE`; the last value for a partition wins.
    pub fn parse(given: &[String]) -> Self {
        Self(given.iter().map(|text| split(text)).collect())
    }

    /// The value for a container that may run in these partitions. sbatch takes one value, so the
    /// first partition decides.
    pub fn value(&self, partitions: &[String]) -> Option<&str> {
        let named = partitions.first().and_then(|first| self.0.get(first));
        named
            .or_else(|| self.0.get(ANY_PARTITION))
            .map(String::as_str)
    }

    fn templates(&self) -> impl Iterator<Item = &String> + Clone {
        self.0.values()
    }
}

/// Splits at the colon if a partition name precedes it, because constraints contain colons too.
fn split(text: &str) -> (String, String) {
    let is_name = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        name == ANY_PARTITION || (!name.is_empty() && name.chars().all(plain))
    };
    match text.split_once(':') {
        Some((partition, value)) if is_name(partition) => (partition.into(), value.into()),
        _ => (ANY_PARTITION.into(), text.into()),
    }
}

/// Why the settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A template is malformed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Not exactly one cluster.
    #[error(
        "--clusters={0} is not the name of one cluster: run a dispatch-slurm with a --state-dir of its own for each"
    )]
    Clusters(String),
    /// Only sbatch would address the other cluster.
    #[error(
        "{0} sends jobs to a cluster that the other commands do not query: remove it and set --clusters (SLURM.Clusters)"
    )]
    OtherCluster(String),
    /// The dispatcher relies on its own value of the option.
    #[error("{argument} is not accepted as an argument of sbatch: {why}")]
    Reserved {
        /// The argument.
        argument: String,
        /// Why the dispatcher sets the option itself.
        why: &'static str,
    },
}

/// Environment variables that send jobs to another cluster.
const CLUSTER_VARIABLES: [&str; 2] = ["SBATCH_CLUSTERS", "SLURM_CLUSTERS"];

/// Whether the argument is `--clusters`, or an abbreviation that sbatch accepts, from `--clu`.
fn names_a_cluster(argument: &str) -> bool {
    let option = argument.split('=').next().unwrap_or_default();
    let is_long = option.len() >= "--clu".len() && "--clusters".starts_with(option);
    is_long
        || "--cluster".starts_with(option) && option.len() >= "--clu".len()
        || argument.starts_with("-M")
}

/// Checks an argument of the owner map; the error is for the admin.
pub fn check_argument(argument: &str) -> Result<(), String> {
    let option = || format!("{argument:?} is no option of sbatch: write --OPTION=VALUE");
    if !argument.starts_with('-') {
        return Err(option());
    }
    let checked = check_option(argument).and_then(|()| Ok(check_template(argument)?));
    checked.map_err(|error| error.to_string())
}

/// Refuses options that are the dispatcher's own.
fn check_option(argument: &str) -> Result<(), SettingsError> {
    if names_a_cluster(argument) {
        return Err(SettingsError::OtherCluster(argument.to_owned()));
    }
    match reserved_options::refusal(argument) {
        Some(why) => Err(SettingsError::Reserved {
            argument: argument.to_owned(),
            why,
        }),
        None => Ok(()),
    }
}

fn check_template(template: impl AsRef<str>) -> Result<(), TemplateError> {
    let (container, needs) = (ContainerUuid::generate("zzzzz"), ResourceRequest::default());
    let values = Values {
        container: &container,
        needs: &needs,
        instance_type: "",
        gpu_model: None,
    };
    render(template.as_ref(), values).map(drop)
}

impl Settings {
    /// The templates of arguments for all kinds of containers.
    pub fn all_arguments(&self) -> impl Iterator<Item = &String> + Clone {
        let further = [&self.gpu_arguments, &self.preemptible_arguments];
        self.arguments.iter().chain(further.into_iter().flatten())
    }

    /// Checks the templates and the cluster; the error is for the admin.
    pub fn check(&self) -> Result<(), SettingsError> {
        // Job ids are unique within one cluster only, and `all` means several.
        if let Some(name) = &self.clusters
            && (name.is_empty() || name == "all" || name.contains(','))
        {
            return Err(SettingsError::Clusters(name.clone()));
        }
        self.all_arguments()
            .try_for_each(|argument| check_option(argument))?;
        if let Some(name) = CLUSTER_VARIABLES
            .iter()
            .find(|name| self.environment.contains_key(**name))
        {
            return Err(SettingsError::OtherCluster((*name).to_owned()));
        }
        Ok(self.templates().try_for_each(check_template)?)
    }

    /// All templates but those of the owner map.
    fn templates(&self) -> impl Iterator<Item = &String> + Clone {
        let options = self.partition_options().into_iter();
        let values = options.flat_map(|(_, values)| values.templates());
        values.chain(self.all_arguments())
    }

    /// The options with a value for each partition, by the names of their flags, which are those of
    /// sbatch too.
    pub fn partition_options(&self) -> [(&'static str, &PerPartition); 4] {
        [
            ("account", &self.account),
            ("qos", &self.qos),
            ("reservation", &self.reservation),
            ("constraint", &self.constraint),
        ]
    }

    /// Name of the GPU model for the first hardware target that has one.
    pub fn gpu_model(&self, needs: &ResourceRequest) -> Option<&str> {
        let targets = needs.gpu_model.as_ref()?.hardware_target.iter();
        let model = targets
            .filter_map(|target| self.gpu_models.get(target))
            .next();
        model.map(String::as_str)
    }

    /// How the jobs of an owner are charged.
    pub fn charge(&self, owner: &KnownOwner) -> Charge {
        let templates = self.templates().filter(|template| uses_owner(template));
        owner_map::charge(self.owner_map.as_deref(), templates, owner.clone())
    }

    /// Arguments of every Slurm command that address another cluster.
    pub fn cluster_arguments(&self) -> Vec<String> {
        let cluster = self.clusters.iter();
        cluster.map(|name| format!("--clusters={name}")).collect()
    }

    /// A Slurm command for the configured cluster: another cluster reuses the same job ids.
    pub fn client(&self, program: &str) -> Command {
        Command::new(program).args(self.cluster_arguments())
    }
}

/// The keys of the configuration file that dispatch-slurm reads besides the common ones.
#[rustfmt::skip]
pub const KEYS: [Key; 13] = [
    Key::new("Containers.SLURM.SbatchArgumentsList", "arguments", Form::List),
    Key::new("Containers.SLURM.SbatchGPUArgumentsList", "gpu_arguments", Form::List),
    Key::new("Containers.SLURM.PreemptibleArgumentsList", "preemptible_arguments", Form::List),
    Key::new(ENVIRONMENT_KEY, "", Form::Map),
    Key::new("Containers.SLURM.PrioritySpread", "priority_spread", Form::Number),
    Key::new("Containers.SLURM.Clusters", "clusters", Form::Text),
    Key::new("Containers.SLURM.GPUModels", "gpu_models", Form::Map),
    Key::new("Containers.SLURM.OwnerMap", "owner_map", Form::Text),
    Key::new("Containers.SLURM.Account", "account", Form::ByPartition),
    Key::new("Containers.SLURM.QOS", "qos", Form::ByPartition),
    Key::new("Containers.SLURM.Reservation", "reservation", Form::ByPartition),
    Key::new("Containers.SLURM.Constraint", "constraint", Form::ByPartition),
    Key::new("Containers.StagingAllowance", "staging_allowance", Form::Text),
];
/// The environment of sbatch.
pub const ENVIRONMENT_KEY: &str = "Containers.SLURM.SbatchEnvironmentVariables";

/// The default of `--crunch-run` in the configuration file.
pub fn crunch_run_default(config: &Config) -> Vec<FileDefault> {
    config.crunch_run("crunch-run").into_iter().collect()
}

#[cfg(test)]
mod tests {
    use dispatch_core::config::parse;

    use super::*;
    use crate::flags::Flags;

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn a_value_is_for_its_partition_or_for_all_others() {
        let given = PerPartition::parse(&owned(&["lab", "gpu:lab-gpu", "a b:c", "*:other"]));
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
        let one = PerPartition::parse(&owned(&["gpu:x"]));
        assert_eq!(one.value(&owned(&["cpu"])), None);
        let constraint = PerPartition::parse(&owned(&["[rack1&(a:b)]"]));
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
            constraint: PerPartition::parse(&owned(&["instancetype=%Y"])),
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
            arguments: owned(&["--requeue"]),
            ..Settings::default()
        };
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with("--requeue is not accepted"), "{error}");
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
            RuntimeEngine: podman, MinRetryPeriod: 13s, SLURM: {SbatchGPUArgumentsList: [], PreemptibleArgumentsList: [--qos=low], Account: {gpu: x, '*': y},
            Clusters: 'a,b', GPUModels: {SAMPLE: x, '8.0': a100}}}}}";
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let words = ["x", "--state-dir=/jobs", "--config", path].map(std::ffi::OsString::from);
        let parsed = parse::<Flags>(words, &KEYS, crunch_run_default);
        let (flags, origins, _) = parsed.unwrap();
        assert!(flags.gpu_arguments.is_empty());
        assert_eq!(flags.preemptible_arguments, ["--qos=low"]);
        assert_eq!(flags.clusters.as_deref(), Some("a,b"));
        assert_eq!(flags.account, ["*:y", "gpu:x"]);
        assert_eq!(flags.gpu_models, [("8.0".to_owned(), "a100".to_owned())]);
        assert_eq!(
            flags.crunch_run,
            "x-crunch-run '--a=b c' '--runtime-engine=podman'"
        );
        assert_eq!(flags.common.min_retry_period.as_secs(), 13);
        let key = "Containers.SLURM.Clusters";
        assert_eq!(origins.describe("clusters", "x"), format!("{key}: x"));
        assert_eq!(origins.describe("qos", "x"), "default of --qos: x");
    }
}

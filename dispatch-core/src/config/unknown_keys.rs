//! Finds probable typos in the configuration file. Input: the path of an unknown key; output: a
//! warning or nothing. No I/O.
//!
//! In a section whose keys are all known, any other key gets a warning. Elsewhere the file
//! configures other programs, so only a key similar to a known one gets a warning.

use serde_ignored::Path;

/// Sections whose keys are all known, each with the keys in it that are not read.
const CLOSED_SECTIONS: [(&str, &[&str]); 4] = [
    ("Containers.Condor.", &[]),
    ("Containers.SLURM.", &["Managed"]),
    ("InstanceTypes.*.", &["ProviderType", "Name", "Service"]),
    (
        "Containers.",
        &[
            "AlwaysUsePreemptibleInstances",
            "CloudVMs",
            "DefaultKeepCacheDisk",
            "DefaultKeepCacheRAM",
            "DispatchPrivateKey",
            "JobsAPI",
            "LSF",
            "LocalKeepBlobBuffersPerVCPU",
            "LocalKeepLogsToContainerLog",
            "Logging",
            "MaxComputeVMs",
            "MaxDispatchAttempts",
            "MaxRetryAttempts",
            "MaximumPriceFactor",
            "PreemptiblePriceFactor",
            "PreemptionBehavior",
            "ShellAccess",
            "StaleLockTimeout",
            "SupportedDockerImageFormats",
            "UsePreemptibleInstances",
            "ExternalPortMin",
            "ExternalPortMax",
            "PublishPorts",
        ],
    ),
];

/// Keys that dispatchers read, below `Clusters.ID.`.
const KNOWN: [&str; 52] = [
    "SystemRootToken",
    "Services",
    "Services.Controller",
    "Services.Controller.ExternalURL",
    "TLS",
    "TLS.Insecure",
    "Containers",
    "Containers.CrunchRunCommand",
    "Containers.CrunchRunArgumentsList",
    "Containers.RuntimeEngine",
    "Containers.ReserveExtraRAM",
    "Containers.MinRetryPeriod",
    "Containers.StagingAllowance",
    "Containers.SLURM",
    "Containers.SLURM.PrioritySpread",
    "Containers.SLURM.SbatchArgumentsList",
    "Containers.SLURM.SbatchGPUArgumentsList",
    "Containers.SLURM.PreemptibleArgumentsList",
    "Containers.SLURM.SbatchEnvironmentVariables",
    "Containers.SLURM.Account",
    "Containers.SLURM.QOS",
    "Containers.SLURM.Reservation",
    "Containers.SLURM.Constraint",
    "Containers.SLURM.Clusters",
    "Containers.SLURM.OwnerMap",
    "Containers.SLURM.GPUModels",
    "Containers.SLURM.GPUModels.*",
    "Containers.Condor",
    "Containers.Condor.SubmitLines",
    "Containers.Condor.GPUSubmitLines",
    "Containers.Condor.PreemptibleSubmitLines",
    "Containers.Condor.AccountingGroup",
    "Containers.Condor.AccountingGroupUser",
    "Containers.Condor.ConcurrencyLimits",
    "Containers.Condor.Requirements",
    "Containers.Condor.Rank",
    "Containers.Condor.EnvironmentVariables",
    "Containers.Condor.TransferCrunchRun",
    "Containers.Condor.PoolGrows",
    "Containers.Condor.OwnerMap",
    "InstanceTypes",
    "InstanceTypes.*.VCPUs",
    "InstanceTypes.*.RAM",
    "InstanceTypes.*.Scratch",
    "InstanceTypes.*.IncludedScratch",
    "InstanceTypes.*.AddedScratch",
    "InstanceTypes.*.Price",
    "InstanceTypes.*.Preemptible",
    "InstanceTypes.*.GPU",
    "InstanceTypes.*.GPU.DeviceCount",
    "InstanceTypes.*.GPU.Stack",
    "InstanceTypes.*.CUDA",
];

/// Maximum edit distance between a typo and the known key.
const MAX_TYPO_DISTANCE: usize = 2;

/// The keys from the root to `path`. They stay separate because the name of an instance type may
/// contain dots.
pub fn key_path(path: &Path<'_>) -> Vec<String> {
    let (parent, step) = match path {
        Path::Root => return Vec::new(),
        Path::Seq { parent, index } => (parent, Some(index.to_string())),
        Path::Map { parent, key } => (parent, Some(key.clone())),
        Path::Some { parent } => (parent, None),
        Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => (parent, None),
    };
    let mut keys = key_path(parent);
    keys.extend(step);
    keys
}

/// The warning for an unknown key, if it is probably a typo.
pub fn warning(keys: &[String]) -> Option<String> {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let whole = keys.join(".");
    let key = match keys.as_slice() {
        ["Clusters", _, "InstanceTypes", _, rest @ ..] => {
            format!("InstanceTypes.*.{}", rest.join("."))
        }
        ["Clusters", _, rest @ ..] => rest.join("."),
        _ => return None,
    };
    let (section, name) = key.rsplit_once('.').map_or(("", &*key), |(s, n)| (s, n));
    let near = KNOWN.iter().filter_map(|known| {
        let (prefix, known_name) = known.rsplit_once('.').unwrap_or(("", known));
        let (a, b) = (known_name.to_lowercase(), name.to_lowercase());
        let distance = strsim::levenshtein(&a, &b);
        (prefix == section && distance <= MAX_TYPO_DISTANCE.min(b.len() / 2))
            .then_some((distance, known_name))
    });
    let nearest = near.min().map(|(_, name)| name);
    let expected = CLOSED_SECTIONS.iter().find_map(|(place, others)| {
        let rest = key.strip_prefix(place)?;
        let first = rest.split('.').next().unwrap_or_default();
        Some(others.contains(&first))
    });
    match (nearest, expected) {
        (_, Some(true)) | (None, None) => None,
        (Some(known), _) => Some(format!("{whole} is not known; is {known} meant?")),
        (None, Some(false)) => Some(format!("{whole} is not known, and has no effect")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_told_and_other_programs_keys_are_not() {
        #[rustfmt::skip]
        let rows = [
            ("Clusters.zzzzz.PostgreSQL", None),
            ("Clusters.zzzzz.SystemRootTokens", Some("Clusters.zzzzz.SystemRootTokens is not known; is SystemRootToken meant?")),
            ("Clusters.zzzzz.Tls", Some("Clusters.zzzzz.Tls is not known; is TLS meant?")),
            ("Clusters.zzzzz.API", None),
            ("Clusters.zzzzz.Containers.LSF", None),
            ("Clusters.zzzzz.Containers.CloudVMs", None),
            ("Clusters.zzzzz.Containers.ReserveExtraRam", Some("Clusters.zzzzz.Containers.ReserveExtraRam is not known; is ReserveExtraRAM meant?")),
            ("Clusters.zzzzz.Containers.Colour", Some("Clusters.zzzzz.Containers.Colour is not known, and has no effect")),
            ("Clusters.zzzzz.Containers.SLURM.Managed", None),
            ("Clusters.zzzzz.Containers.SLURM.SbatchArguments", Some("Clusters.zzzzz.Containers.SLURM.SbatchArguments is not known, and has no effect")),
            ("Clusters.zzzzz.Containers.Condor.SubmitLine", Some("Clusters.zzzzz.Containers.Condor.SubmitLine is not known; is SubmitLines meant?")),
            ("Clusters.zzzzz.Containers.Condor.Colour", Some("Clusters.zzzzz.Containers.Condor.Colour is not known, and has no effect")),
            ("Clusters.zzzzz.InstanceTypes.a1.ProviderType", None),
            ("Clusters.zzzzz.InstanceTypes.a1.VCPU", Some("Clusters.zzzzz.InstanceTypes.a1.VCPU is not known; is VCPUs meant?")),
            ("Clusters.zzzzz.Services.Keepstore", None),
            ("Other", None),
        ];
        for (path, expected) in rows {
            let steps: Vec<String> = path.split('.').map(str::to_owned).collect();
            assert_eq!(warning(&steps).as_deref(), expected, "{path}");
        }
    }
}

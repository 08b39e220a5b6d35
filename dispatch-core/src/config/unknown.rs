//! Keys that were passed over: which of them are probably slips. Pure.
//!
//! Where every key is known to us, any other is a slip. Elsewhere the file has sections for programs that we know
//! nothing of, and only a key that is nearly one of ours is.

use serde_ignored::Path;

/// Sections of which we read everything there is, but for the named.
const WHOLE: [(&str, &[&str]); 4] = [
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

/// What we read, below `Clusters.ID.`.
const KNOWN: [&str; 45] = [
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
    "Containers.SLURM",
    "Containers.SLURM.PrioritySpread",
    "Containers.SLURM.SbatchArgumentsList",
    "Containers.SLURM.SbatchGPUArgumentsList",
    "Containers.SLURM.SbatchEnvironmentVariables",
    "Containers.SLURM.Account",
    "Containers.SLURM.QOS",
    "Containers.SLURM.Reservation",
    "Containers.SLURM.Constraint",
    "Containers.SLURM.Clusters",
    "Containers.Condor",
    "Containers.Condor.SubmitLines",
    "Containers.Condor.GPUSubmitLines",
    "Containers.Condor.AccountingGroup",
    "Containers.Condor.AccountingGroupUser",
    "Containers.Condor.ConcurrencyLimits",
    "Containers.Condor.Requirements",
    "Containers.Condor.Rank",
    "Containers.Condor.EnvironmentVariables",
    "Containers.Condor.TransferCrunchRun",
    "Containers.Condor.PoolGrows",
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

/// At most so many letters differ in a slip.
const SLIP: usize = 2;

/// The keys on the way to a place: the name of an instance type may have dots in it.
pub fn steps(path: &Path<'_>) -> Vec<String> {
    let (parent, step) = match path {
        Path::Root => return Vec::new(),
        Path::Seq { parent, index } => (parent, Some(index.to_string())),
        Path::Map { parent, key } => (parent, Some(key.clone())),
        Path::Some { parent } => (parent, None),
        Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => (parent, None),
    };
    let mut steps = steps(parent);
    steps.extend(step);
    steps
}

/// A sentence for a place that was passed over, if it is probably a slip.
pub fn warning(steps: &[String]) -> Option<String> {
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let whole = steps.join(".");
    let key = match steps.as_slice() {
        ["Clusters", _, "InstanceTypes", _, rest @ ..] => {
            format!("InstanceTypes.*.{}", rest.join("."))
        }
        ["Clusters", _, rest @ ..] => rest.join("."),
        _ => return None,
    };
    let (section, name) = key.rsplit_once('.').map_or(("", &*key), |(s, n)| (s, n));
    let near = KNOWN.iter().filter_map(|known| {
        let (place, known_name) = known.rsplit_once('.').unwrap_or(("", known));
        let (a, b) = (known_name.to_lowercase(), name.to_lowercase());
        let distance = strsim::levenshtein(&a, &b);
        (place == section && distance <= SLIP.min(b.len() / 2)).then_some((distance, known_name))
    });
    let nearest = near.min().map(|(_, name)| name);
    let expected = WHOLE.iter().find_map(|(place, others)| {
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

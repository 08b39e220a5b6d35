//! Finds probable typos in the configuration file. Input: the file's tree and the keys that the
//! program reads; output: warnings. No I/O.
//!
//! In a section whose keys are all known, any other key gets a warning. Elsewhere the file
//! configures other programs, so only a key similar to a known one gets a warning.

use serde_norway::Value;

use super::Key;

/// Sections whose keys are all known, each with the keys in it that are not read, separated by
/// blanks.
const CLOSED_SECTIONS: [(&str, &str); 4] = [
    ("Containers.Condor.", ""),
    ("Containers.SLURM.", "Managed"),
    ("InstanceTypes.*.", "ProviderType Name Service"),
    (
        "Containers.",
        "AlwaysUsePreemptibleInstances CloudVMs Condor DefaultKeepCacheDisk DefaultKeepCacheRAM \
         DispatchPrivateKey JobsAPI LSF LocalKeepBlobBuffersPerVCPU LocalKeepLogsToContainerLog \
         Logging MaxComputeVMs MaxDispatchAttempts MaxRetryAttempts MaximumPriceFactor \
         PreemptiblePriceFactor PreemptionBehavior SLURM ShellAccess StaleLockTimeout \
         SupportedDockerImageFormats UsePreemptibleInstances ExternalPortMin ExternalPortMax \
         PublishPorts",
    ),
];

/// Keys that every program reads besides its rows, below `Clusters.ID.`.
const KNOWN: &str = "SystemRootToken Services.Controller.ExternalURL TLS.Insecure \
     InstanceTypes.*.VCPUs InstanceTypes.*.RAM InstanceTypes.*.Scratch \
     InstanceTypes.*.IncludedScratch InstanceTypes.*.AddedScratch InstanceTypes.*.Price \
     InstanceTypes.*.Preemptible InstanceTypes.*.GPU.Stack InstanceTypes.*.GPU.DriverVersion \
     InstanceTypes.*.GPU.HardwareTarget InstanceTypes.*.GPU.DeviceCount InstanceTypes.*.GPU.VRAM \
     InstanceTypes.*.CUDA.DriverVersion InstanceTypes.*.CUDA.HardwareCapability \
     InstanceTypes.*.CUDA.DeviceCount";

/// Maximum edit distance between a typo and the known key.
const MAX_TYPO_DISTANCE: usize = 2;

/// Warnings about the unknown keys of a cluster that are probably typos. `place` is its place in
/// the file.
pub fn warnings(cluster: &Value, place: &str, own: &[Key]) -> Vec<String> {
    let known = KNOWN.split(' ').chain(own.iter().map(|key| key.path));
    let mut search = Search {
        known: known.collect(),
        warnings: Vec::new(),
    };
    search.visit(cluster, "", place);
    search.warnings
}

struct Search<'a> {
    /// Paths of values, below the cluster; `*` is any name.
    known: Vec<&'a str>,
    warnings: Vec<String>,
}

impl Search<'_> {
    /// Visits the keys in the section `section`, which ends with a dot unless it is the cluster.
    fn visit(&mut self, value: &Value, section: &str, place: &str) {
        let names = value.as_mapping().into_iter().flatten();
        for (name, value) in names.filter_map(|(name, value)| Some((name.as_str()?, value))) {
            let step = if section == "InstanceTypes." {
                "*"
            } else {
                name
            };
            let (path, place) = (format!("{section}{step}"), format!("{place}.{name}"));
            let inside = format!("{path}.");
            if self.known.iter().any(|known| known.starts_with(&inside)) {
                self.visit(value, &inside, &place);
            } else if !self.known.contains(&&*path) {
                let warning = self.warning(section, name);
                self.warnings.extend(warning.map(|why| place + &why));
            }
        }
    }

    /// What to say of an unknown key, if it is probably a typo.
    fn warning(&self, section: &str, name: &str) -> Option<String> {
        let near = self.known.iter().filter_map(|known| {
            let known_name = known.strip_prefix(section)?.split('.').next()?;
            let (a, b) = (known_name.to_lowercase(), name.to_lowercase());
            let distance = strsim::levenshtein(&a, &b);
            (distance <= MAX_TYPO_DISTANCE.min(b.len() / 2)).then_some((distance, known_name))
        });
        let nearest = near.min().map(|(_, name)| name);
        let closed = CLOSED_SECTIONS.iter().find(|(place, _)| *place == section);
        let is_expected =
            closed.map(|(_, others)| others.split_whitespace().any(|other| other == name));
        match (nearest, is_expected) {
            (_, Some(true)) | (None, None) => None,
            (Some(known), _) => Some(format!(" is not known; is {known} meant?")),
            (None, Some(false)) => Some(" is not known, and has no effect".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::super::keys::COMMON;
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
        let own = [
            Key::new("Containers.SLURM.SbatchArgumentsList", "", Form::List),
            Key::new("Containers.Condor.SubmitLines", "", Form::List),
        ];
        let keys = [&COMMON[..], &own].concat();
        for (path, expected) in rows {
            let steps = path.rsplit('.');
            let tree = steps.fold(Value::Null, |inner, step| {
                Value::Mapping([(step.into(), inner)].into_iter().collect())
            });
            let warnings = warnings(&tree["Clusters"]["zzzzz"], "Clusters.zzzzz", &keys);
            assert_eq!(warnings.first().map(String::as_str), expected, "{path}");
        }
    }
}

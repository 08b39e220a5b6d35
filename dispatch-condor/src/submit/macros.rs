//! The macros that submit descriptions use: one for each field of an item, and two that a field may
//! hold. Pure.

/// The letters of templates and the macro of each, in the order of an item's fields.
pub const TEMPLATE_MACROS: [(char, &str); 10] = [
    ('U', "ContainerName"),
    ('C', "JobCpus"),
    ('M', "JobMemory"),
    ('T', "JobScratch"),
    ('G', "JobGpus"),
    ('W', "JobMinutes"),
    ('P', "JobPartitions"),
    ('I', "JobInstanceType"),
    ('u', "JobUser"),
    ('g', "JobProject"),
];
/// The fields of an item after those of [`TEMPLATE_MACROS`]. The last one takes the rest of the
/// line, whatever is in it.
const JOB_FIELDS: [&str; 5] = [
    "AttemptName",
    "JobDisk",
    "JobSeconds",
    "JobGpuRule",
    "JobDirectory",
];

/// Macros that a field may hold: a comma within the field, and an empty value.
const VALUE_MACROS: [&str; 2] = ["Comma", "Nothing"];

/// The macros that an item fills, in its order.
pub fn field_names() -> Vec<&'static str> {
    let template = TEMPLATE_MACROS.iter().map(|(_, name)| *name);
    template.chain(JOB_FIELDS).collect()
}

/// Every macro that this program defines.
pub fn all_names() -> Vec<&'static str> {
    field_names().into_iter().chain(VALUE_MACROS).collect()
}

/// Whether a line of condor_submit only warns that a macro of this program is used by no line of
/// this site.
pub fn is_unused_own(line: &str) -> bool {
    let named = line.split('\'').nth(1).unwrap_or_default();
    let name = named.split(' ').next().unwrap_or_default();
    line.contains("unused") && all_names().contains(&name)
}

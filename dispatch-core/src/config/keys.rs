//! The keys of the configuration file that programs read: one row each. Input: the file's tree;
//! output: values in the syntax of the command line.

use std::collections::BTreeMap;

use serde_norway::{Error, Value, from_value};

use super::values;

/// A key of the configuration file.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Path of the key, below the cluster.
    pub path: &'static str,
    /// Name in the program of the flag whose default it gives; empty if there is none.
    pub flag: &'static str,
    /// What the value looks like.
    pub form: Form,
}

/// What a value looks like in the file.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    Text,
    Number,
    /// `true` or `false`.
    Switch,
    /// A list of texts, one value of the flag each.
    List,
    /// Bytes, as [`values::size`] reads them.
    Size,
    /// A duration in Go's syntax.
    Time,
    /// Text, or texts by partition; `PARTITION:TEXT` as a flag.
    ByPartition,
    /// Texts by name; `NAME=TEXT` as a flag.
    Map,
}

/// The keys that every dispatcher reads.
pub const COMMON: [Key; 5] = [
    Key::new("Containers.CrunchRunCommand", "", Form::Text),
    Key::new("Containers.CrunchRunArgumentsList", "", Form::List),
    Key::new("Containers.RuntimeEngine", "", Form::Text),
    Key::new(
        "Containers.ReserveExtraRAM",
        "reserve_extra_ram",
        Form::Size,
    ),
    Key::new("Containers.MinRetryPeriod", "min_retry_period", Form::Time),
];

impl Key {
    pub const fn new(path: &'static str, flag: &'static str, form: Form) -> Self {
        Self { path, flag, form }
    }

    /// Reads the value below `cluster`; none if it is not set.
    pub(super) fn read(&self, cluster: &Value) -> Result<Option<Vec<String>>, Error> {
        let mut steps = self.path.split('.');
        let found = steps.try_fold(cluster, |at, step| at.get(step));
        let value = found.cloned().unwrap_or_default();
        let one = |text: String| vec![text];
        let joined = |map: BTreeMap<String, String>, sign: char| {
            let entries = map.into_iter().filter(|(name, _)| name != values::SAMPLE);
            let texts = entries.map(|(name, text)| format!("{name}{sign}{text}"));
            Some(texts.collect()).filter(|texts: &Vec<String>| !texts.is_empty())
        };
        Ok(match self.form {
            Form::Text => from_value::<Option<String>>(texts(value))?.map(one),
            Form::Number => from_value::<Option<u64>>(value)?.map(|n| one(n.to_string())),
            Form::Switch => from_value::<Option<bool>>(value)?.map(|yes| one(yes.to_string())),
            Form::List => from_value(texts(value))?,
            Form::Size => values::size(value)?.map(|bytes| one(format!("{bytes}B"))),
            Form::Time => values::time(value)?.map(|time| one(format!("{}ms", time.as_millis()))),
            Form::ByPartition => joined(values::per_partition(texts(value))?, ':'),
            Form::Map => joined(
                from_value::<Option<_>>(texts(value))?.unwrap_or_default(),
                '=',
            ),
        })
    }
}

/// The value with numbers and the like inside as texts: YAML has them without quotes, too.
fn texts(value: Value) -> Value {
    let inside = |value| match value {
        Value::Null => Value::from(""),
        value => texts(value),
    };
    match value {
        Value::Bool(yes) => yes.to_string().into(),
        Value::Number(number) => number.to_string().into(),
        Value::Sequence(list) => list.into_iter().map(inside).collect(),
        Value::Mapping(map) => {
            let entries = map.into_iter();
            let entries = entries.map(|(name, value)| (inside(name), inside(value)));
            Value::Mapping(entries.collect())
        }
        text => text,
    }
}

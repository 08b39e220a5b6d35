//! The container request record.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Extra, Mount, RuntimeConstraints, SchedulingParameters, lenient, optional, time};
use crate::ids::{CollectionUuid, ContainerRequestUuid, ContainerUuid, Uuid};

/// `state` of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum RequestState {
    /// A draft.
    #[default]
    Uncommitted,
    /// A container exists for it.
    Committed,
    /// Done, output and log in place.
    Final,
    /// Not in our table.
    Unknown(String),
}

impl From<String> for RequestState {
    fn from(text: String) -> Self {
        match text.as_str() {
            "Uncommitted" => Self::Uncommitted,
            "Committed" => Self::Committed,
            "Final" => Self::Final,
            _ => Self::Unknown(text),
        }
    }
}

impl From<RequestState> for String {
    fn from(state: RequestState) -> Self {
        match state {
            RequestState::Uncommitted => "Uncommitted".into(),
            RequestState::Committed => "Committed".into(),
            RequestState::Final => "Final".into(),
            RequestState::Unknown(text) => text,
        }
    }
}

/// A wish that something be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerRequest {
    /// Its name everywhere.
    pub uuid: ContainerRequestUuid,
    /// Who owns it.
    #[serde(default, deserialize_with = "optional")]
    pub owner_uuid: Option<Uuid>,
    /// What people call it.
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// Where it is in its life.
    #[serde(default)]
    pub state: RequestState,
    /// 0 (cancel, hold) to 1000.
    #[serde(default, deserialize_with = "lenient")]
    pub priority: i64,
    /// The container that serves it now.
    #[serde(default, deserialize_with = "optional")]
    pub container_uuid: Option<ContainerUuid>,
    /// How many containers it had.
    #[serde(default, deserialize_with = "lenient")]
    pub container_count: u32,
    /// How many it may have.
    #[serde(default, deserialize_with = "lenient")]
    pub container_count_max: u32,
    /// What to run.
    #[serde(default, deserialize_with = "lenient")]
    pub command: Vec<String>,
    /// Image as asked for.
    #[serde(default, deserialize_with = "lenient")]
    pub container_image: String,
    /// Variables.
    #[serde(default, deserialize_with = "lenient")]
    pub environment: BTreeMap<String, String>,
    /// Mounts by target.
    #[serde(default, deserialize_with = "lenient")]
    pub mounts: BTreeMap<String, Mount>,
    /// Where the output is collected.
    #[serde(default, deserialize_with = "lenient")]
    pub output_path: String,
    /// Output, once Final.
    #[serde(default, deserialize_with = "optional")]
    pub output_uuid: Option<CollectionUuid>,
    /// Log, as soon as there is one.
    #[serde(default, deserialize_with = "optional")]
    pub log_uuid: Option<CollectionUuid>,
    /// What it needs.
    #[serde(default, deserialize_with = "lenient")]
    pub runtime_constraints: RuntimeConstraints,
    /// Where it may run.
    #[serde(default, deserialize_with = "lenient")]
    pub scheduling_parameters: SchedulingParameters,
    /// When it was made.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// When it was last changed.
    #[serde(default, deserialize_with = "time")]
    pub modified_at: Option<Timestamp>,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

//! The container request record.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::attributes::{Extra, lenient, optional, time};
use super::{Mount, RuntimeConstraints, SchedulingParameters};
use crate::ids::{CollectionUuid, ContainerRequestUuid, ContainerUuid, Uuid};

/// `state` of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RequestState {
    /// A draft.
    #[default]
    Uncommitted,
    /// A container exists for it.
    Committed,
    /// Finished, with output and log.
    Final,
    /// A state this library does not know.
    #[serde(untagged)]
    Unknown(String),
}

/// A request to run a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerRequest {
    /// Uuid.
    pub uuid: ContainerRequestUuid,
    /// Uuid of its owner.
    #[serde(default, deserialize_with = "optional")]
    pub owner_uuid: Option<Uuid>,
    /// Name.
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// State.
    #[serde(default)]
    pub state: RequestState,
    /// Priority from 1 to 1000; 0 means cancel or hold.
    #[serde(default, deserialize_with = "lenient")]
    pub priority: i64,
    /// The current container.
    #[serde(default, deserialize_with = "optional")]
    pub container_uuid: Option<ContainerUuid>,
    /// Number of containers so far.
    #[serde(default, deserialize_with = "lenient")]
    pub container_count: u32,
    /// Maximum number of containers.
    #[serde(default, deserialize_with = "lenient")]
    pub container_count_max: u32,
    /// Command and arguments.
    #[serde(default, deserialize_with = "lenient")]
    pub command: Vec<String>,
    /// Image as requested.
    #[serde(default, deserialize_with = "lenient")]
    pub container_image: String,
    /// Environment variables.
    #[serde(default, deserialize_with = "lenient")]
    pub environment: BTreeMap<String, String>,
    /// Mounts by target.
    #[serde(default, deserialize_with = "lenient")]
    pub mounts: BTreeMap<String, Mount>,
    /// Directory in the container that becomes the output.
    #[serde(default, deserialize_with = "lenient")]
    pub output_path: String,
    /// Output, once Final.
    #[serde(default, deserialize_with = "optional")]
    pub output_uuid: Option<CollectionUuid>,
    /// Log, as soon as there is one.
    #[serde(default, deserialize_with = "optional")]
    pub log_uuid: Option<CollectionUuid>,
    /// Resource request.
    #[serde(default, deserialize_with = "lenient")]
    pub runtime_constraints: RuntimeConstraints,
    /// Scheduling parameters.
    #[serde(default, deserialize_with = "lenient")]
    pub scheduling_parameters: SchedulingParameters,
    /// Time of creation.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// Time of the last change.
    #[serde(default, deserialize_with = "time")]
    pub modified_at: Option<Timestamp>,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

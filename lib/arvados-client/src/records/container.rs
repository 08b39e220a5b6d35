//! The container record and its states.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::attributes::{Extra, lenient, optional, time};
use super::{Mount, RuntimeConstraints, SchedulingParameters};
use crate::ids::{ContainerUuid, Pdh, TokenUuid, UserUuid};

/// `state`. A container in an unknown state is left alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ContainerState {
    /// Pending: not locked by a dispatcher.
    #[default]
    Queued,
    /// Locked by a dispatcher.
    Locked,
    /// Its command runs.
    Running,
    /// Its command ended, with any exit code.
    Complete,
    /// Ended in any other way.
    Cancelled,
    /// A state this library does not know.
    #[serde(untagged)]
    Unknown(String),
}

impl ContainerState {
    /// Complete or Cancelled.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Complete | Self::Cancelled)
    }

    /// Spelling in the API.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Queued => "Queued",
            Self::Locked => "Locked",
            Self::Running => "Running",
            Self::Complete => "Complete",
            Self::Cancelled => "Cancelled",
            Self::Unknown(text) => text,
        }
    }
}

impl std::fmt::Display for ContainerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// `runtime_status`, messages for users. The server replaces it as a whole, so an update must be
/// complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStatus {
    /// Why the container failed, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_detail: Option<String>,
    /// A warning for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning_detail: Option<String>,
    /// Current activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    /// Notice that the node will be preempted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_notice: Option<String>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A container. With `select`, other attributes have their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// Uuid.
    pub uuid: ContainerUuid,
    /// Version of the record, on servers with `If-Match`.
    #[serde(default, deserialize_with = "lenient")]
    pub etag: String,
    /// State.
    #[serde(default)]
    pub state: ContainerState,
    /// 0 means on hold or to be stopped, else about request priority × 2^50. An i64, because a
    /// float is not exact enough.
    #[serde(default, deserialize_with = "lenient")]
    pub priority: i64,
    /// The token that holds the lock.
    #[serde(default, deserialize_with = "optional")]
    pub locked_by_uuid: Option<TokenUuid>,
    /// The user as whom its token acts: who asked for it.
    #[serde(default, deserialize_with = "optional")]
    pub runtime_user_uuid: Option<UserUuid>,
    /// Number of locks so far; the server cancels at `MaxDispatchAttempts`.
    #[serde(default, deserialize_with = "lenient")]
    pub lock_count: u32,
    /// Time of creation.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// Time of the last change, except for changes of priority by other containers.
    #[serde(default, deserialize_with = "time")]
    pub modified_at: Option<Timestamp>,
    /// Start of its command.
    #[serde(default, deserialize_with = "time")]
    pub started_at: Option<Timestamp>,
    /// End of the container.
    #[serde(default, deserialize_with = "time")]
    pub finished_at: Option<Timestamp>,
    /// Command and arguments.
    #[serde(default, deserialize_with = "lenient")]
    pub command: Vec<String>,
    /// Portable data hash of the image.
    #[serde(default, deserialize_with = "lenient")]
    pub container_image: String,
    /// Working directory; `.` is that of the image.
    #[serde(default, deserialize_with = "lenient")]
    pub cwd: String,
    /// Environment variables.
    #[serde(default, deserialize_with = "lenient")]
    pub environment: BTreeMap<String, String>,
    /// Mounts by target path, or by stdin, stdout, stderr.
    #[serde(default, deserialize_with = "lenient")]
    pub mounts: BTreeMap<String, Mount>,
    /// Directory in the container that becomes the output.
    #[serde(default, deserialize_with = "lenient")]
    pub output_path: String,
    /// Patterns of output files; empty means all.
    #[serde(default, deserialize_with = "lenient")]
    pub output_glob: Vec<String>,
    /// Storage classes of the output.
    #[serde(default, deserialize_with = "lenient")]
    pub output_storage_classes: Vec<String>,
    /// Resource request.
    #[serde(default, deserialize_with = "lenient")]
    pub runtime_constraints: RuntimeConstraints,
    /// Scheduling parameters.
    #[serde(default, deserialize_with = "lenient")]
    pub scheduling_parameters: SchedulingParameters,
    /// Messages for users.
    #[serde(default, deserialize_with = "lenient")]
    pub runtime_status: RuntimeStatus,
    /// Exit code of the command.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Log collection.
    #[serde(default, deserialize_with = "optional")]
    pub log: Option<Pdh>,
    /// Output collection.
    #[serde(default, deserialize_with = "optional")]
    pub output: Option<Pdh>,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What lock and unlock answer: not the whole record.
#[derive(Debug, Clone, Deserialize)]
pub struct LockReply {
    /// Which container.
    pub uuid: ContainerUuid,
    /// Its state now: unlock may answer Cancelled (`MaxDispatchAttempts`).
    pub state: ContainerState,
    /// Token that holds the lock.
    #[serde(default, deserialize_with = "optional")]
    pub locked_by_uuid: Option<TokenUuid>,
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(text: &str) -> Container {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn priorities_of_sixty_bits_stay_exact() {
        let c = read(r#"{"uuid":"zzzzz-dz642-0123456789abcde","priority":562948158193364795}"#);
        assert_eq!(c.priority, 562_948_158_193_364_795);
        let back = serde_json::to_string(&c).unwrap();
        assert!(back.contains("562948158193364795"), "{back}");
    }

    #[test]
    fn unknown_attributes_and_states_survive() {
        let c = read(
            r#"{"uuid":"zzzzz-dz642-0123456789abcde","state":"Paused","gateway_address":"h:1","new":{"a":[1]}}"#,
        );
        assert_eq!(c.state, ContainerState::Unknown("Paused".into()));
        let back: Value = serde_json::to_value(&c).unwrap();
        assert_eq!(back["state"], "Paused");
        assert_eq!(back["new"]["a"][0], 1);
        assert_eq!(back["gateway_address"], "h:1");
    }

    #[test]
    fn both_null_styles_read_as_absent() {
        for null in ["null", "\"\""] {
            let c = read(&format!(
                r#"{{"uuid":"zzzzz-dz642-0123456789abcde","locked_by_uuid":{null},"log":{null},"started_at":{null}}}"#
            ));
            assert_eq!((c.locked_by_uuid, c.log, c.started_at), (None, None, None));
        }
        let c = read(
            r#"{"uuid":"zzzzz-dz642-0123456789abcde","mounts":null,"runtime_status":null,"priority":null}"#,
        );
        assert_eq!((c.mounts.len(), c.priority), (0, 0));
    }
}

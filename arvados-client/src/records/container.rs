//! The container record and its states.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extra, Mount, RuntimeConstraints, SchedulingParameters, lenient, optional, time};
use crate::ids::{ContainerUuid, Pdh, TokenUuid};

/// `state`. A state we do not know means: somebody else's business, keep waiting.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ContainerState {
    /// Waiting for a dispatcher.
    #[default]
    Queued,
    /// A dispatcher has it.
    Locked,
    /// Its command runs.
    Running,
    /// Ended by its own exit, whatever the code.
    Complete,
    /// Ended otherwise.
    Cancelled,
    /// Not in our table.
    Unknown(String),
}

impl ContainerState {
    /// Complete or Cancelled.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Complete | Self::Cancelled)
    }

    /// The word the API uses.
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

impl From<String> for ContainerState {
    fn from(text: String) -> Self {
        match text.as_str() {
            "Queued" => Self::Queued,
            "Locked" => Self::Locked,
            "Running" => Self::Running,
            "Complete" => Self::Complete,
            "Cancelled" => Self::Cancelled,
            _ => Self::Unknown(text),
        }
    }
}

impl From<ContainerState> for String {
    fn from(state: ContainerState) -> Self {
        state.as_str().to_owned()
    }
}

impl std::fmt::Display for ContainerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// `runtime_status`: the words people read. The server replaces it whole, so an update carries all of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStatus {
    /// Why it ended other than by its own exit: one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_detail: Option<String>,
    /// Something the user should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning_detail: Option<String>,
    /// What is being done right now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    /// The node is about to be taken away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_notice: Option<String>,
    /// Keys of others.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A container. With `select`, attributes that were not asked for have their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// Its name everywhere.
    pub uuid: ContainerUuid,
    /// Changes with the record where the server honours `If-Match`.
    #[serde(default, deserialize_with = "lenient")]
    pub etag: String,
    /// Where it is in its life.
    #[serde(default)]
    pub state: ContainerState,
    /// 0 is on hold or to be stopped; else about request priority × 2^50, so i64 and never a float.
    #[serde(default, deserialize_with = "lenient")]
    pub priority: i64,
    /// The token that holds the lock.
    #[serde(default, deserialize_with = "optional")]
    pub locked_by_uuid: Option<TokenUuid>,
    /// The container's own token.
    #[serde(default, deserialize_with = "optional")]
    pub auth_uuid: Option<TokenUuid>,
    /// How often it was locked; the server gives up at `MaxDispatchAttempts`.
    #[serde(default, deserialize_with = "lenient")]
    pub lock_count: u32,
    /// When it was made.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// When it was last changed (a priority cascade does not count).
    #[serde(default, deserialize_with = "time")]
    pub modified_at: Option<Timestamp>,
    /// When its command started.
    #[serde(default, deserialize_with = "time")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "time")]
    pub finished_at: Option<Timestamp>,
    /// What to run.
    #[serde(default, deserialize_with = "lenient")]
    pub command: Vec<String>,
    /// The image's collection.
    #[serde(default, deserialize_with = "lenient")]
    pub container_image: String,
    /// Working directory; `.` is the image's.
    #[serde(default, deserialize_with = "lenient")]
    pub cwd: String,
    /// Variables.
    #[serde(default, deserialize_with = "lenient")]
    pub environment: BTreeMap<String, String>,
    /// By target path, or stdin, stdout, stderr.
    #[serde(default, deserialize_with = "lenient")]
    pub mounts: BTreeMap<String, Mount>,
    /// Where its output is collected.
    #[serde(default, deserialize_with = "lenient")]
    pub output_path: String,
    /// Which of it; empty is all.
    #[serde(default, deserialize_with = "lenient")]
    pub output_glob: Vec<String>,
    /// Storage classes of the output.
    #[serde(default, deserialize_with = "lenient")]
    pub output_storage_classes: Vec<String>,
    /// What it needs.
    #[serde(default, deserialize_with = "lenient")]
    pub runtime_constraints: RuntimeConstraints,
    /// Where it may run.
    #[serde(default, deserialize_with = "lenient")]
    pub scheduling_parameters: SchedulingParameters,
    /// The words people read.
    #[serde(default, deserialize_with = "lenient")]
    pub runtime_status: RuntimeStatus,
    /// How the command ended.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Log collection.
    #[serde(default, deserialize_with = "optional")]
    pub log: Option<Pdh>,
    /// Output collection.
    #[serde(default, deserialize_with = "optional")]
    pub output: Option<Pdh>,
    /// Properties of the output collection.
    #[serde(default)]
    pub output_properties: Value,
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
    /// Its priority now.
    #[serde(default, deserialize_with = "lenient")]
    pub priority: i64,
    /// Who holds it now.
    #[serde(default, deserialize_with = "optional")]
    pub locked_by_uuid: Option<TokenUuid>,
    /// The container's own token.
    #[serde(default, deserialize_with = "optional")]
    pub auth_uuid: Option<TokenUuid>,
}

#[cfg(test)]
mod tests {
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

//! Why a container ended, as one word for programs, and who is responsible.

use serde::{Deserialize, Serialize};

use crate::limits::Resource;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The command exited by itself, with any code.
    Exited,
    /// A signal that crunch-run did not send.
    Signalled,
    /// A process was killed by the memory limit, and the command still succeeded.
    ChildOutOfMemory,
    WallTime,
    CpuTime,
    Memory,
    ScratchBytes,
    ScratchFiles,
    Processes,
    OutputSize,
    /// A dispatcher, scheduler or person stopped crunch-run.
    Stopped,
    /// The priority was set to 0.
    PriorityZero,
    /// The request is invalid.
    Refused,
    NotStarted,
    BadOutput,
    /// The node cannot run containers.
    BrokenNode,
    /// The end of the command was not seen.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Responsibility {
    Payload,
    Limit,
    User,
    Specification,
    Infrastructure,
}

impl VerdictKind {
    pub fn class(self) -> Responsibility {
        match self {
            Self::Exited | Self::Signalled | Self::ChildOutOfMemory => Responsibility::Payload,
            Self::WallTime
            | Self::CpuTime
            | Self::Memory
            | Self::ScratchBytes
            | Self::ScratchFiles
            | Self::Processes
            | Self::OutputSize => Responsibility::Limit,
            Self::Stopped | Self::PriorityZero => Responsibility::User,
            Self::Refused | Self::NotStarted | Self::BadOutput => Responsibility::Specification,
            Self::BrokenNode | Self::Lost => Responsibility::Infrastructure,
        }
    }

    /// Whether another attempt at the same request usually ends like this one, on any node.
    pub fn is_permanent(self) -> bool {
        matches!(
            self,
            Self::Memory | Self::Refused | Self::NotStarted | Self::BadOutput
        )
    }

    pub fn of_resource(resource: &Resource) -> Self {
        match resource {
            Resource::CpuTime => Self::CpuTime,
            Resource::ScratchBytes | Resource::RequestedScratch | Resource::MountBytes(_) => {
                Self::ScratchBytes
            }
            Resource::ScratchFiles => Self::ScratchFiles,
            Resource::OutputBytes => Self::OutputSize,
            Resource::Memory | Resource::WatchedMemory => Self::Memory,
        }
    }

    #[cfg(test)]
    pub const ALL: [Self; 17] = [
        Self::Exited,
        Self::Signalled,
        Self::ChildOutOfMemory,
        Self::WallTime,
        Self::CpuTime,
        Self::Memory,
        Self::ScratchBytes,
        Self::ScratchFiles,
        Self::Processes,
        Self::OutputSize,
        Self::Stopped,
        Self::PriorityZero,
        Self::Refused,
        Self::NotStarted,
        Self::BadOutput,
        Self::BrokenNode,
        Self::Lost,
    ];

    /// The word in result.json.
    #[cfg(test)]
    pub fn word(self) -> String {
        word(self)
    }
}

#[cfg(test)]
impl Responsibility {
    pub fn word(self) -> String {
        word(self)
    }
}

#[cfg(test)]
fn word(value: impl Serialize) -> String {
    serde_json::to_value(value)
        .unwrap()
        .as_str()
        .unwrap()
        .to_owned()
}

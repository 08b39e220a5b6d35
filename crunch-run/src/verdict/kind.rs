//! Why a container ended, in one word for programs, and who has to do something about it.

use serde::{Deserialize, Serialize};

use crate::limits::Resource;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// By itself, whatever the code.
    Exited,
    /// By a signal that was not ours.
    Signalled,
    /// Its memory limit took one of its processes, and it went on and ended well.
    ChildOutOfMemory,
    WallTime,
    CpuTime,
    Memory,
    ScratchBytes,
    ScratchFiles,
    Processes,
    OutputSize,
    /// Somebody told crunch-run to end: a dispatcher, a scheduler, a person.
    Stopped,
    /// Nobody wants it any more.
    PriorityZero,
    /// The request is at fault.
    Refused,
    NotStarted,
    BadOutput,
    /// The node cannot run containers.
    BrokenNode,
    /// Its end was not seen.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    Payload,
    Limit,
    User,
    Specification,
    Infrastructure,
}

impl Kind {
    pub fn class(self) -> Class {
        match self {
            Self::Exited | Self::Signalled | Self::ChildOutOfMemory => Class::Payload,
            Self::WallTime
            | Self::CpuTime
            | Self::Memory
            | Self::ScratchBytes
            | Self::ScratchFiles
            | Self::Processes
            | Self::OutputSize => Class::Limit,
            Self::Stopped | Self::PriorityZero => Class::User,
            Self::Refused | Self::NotStarted | Self::BadOutput => Class::Specification,
            Self::BrokenNode | Self::Lost => Class::Infrastructure,
        }
    }

    pub fn of_resource(resource: &Resource) -> Self {
        match resource {
            Resource::CpuTime => Self::CpuTime,
            Resource::ScratchBytes | Resource::MountBytes(_) => Self::ScratchBytes,
            Resource::ScratchFiles => Self::ScratchFiles,
            Resource::OutputBytes => Self::OutputSize,
            Resource::Memory => Self::Memory,
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

    /// As programs read it.
    #[cfg(test)]
    pub fn word(self) -> String {
        word(self)
    }
}

#[cfg(test)]
impl Class {
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

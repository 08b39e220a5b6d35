//! The engines under test: how crunch-run is told to use each, and what they leave on this node.

use arvados_client::ContainerUuid;

use crate::run_lab;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Builtin,
    Crun,
    Runc,
    Apptainer,
}

impl Engine {
    /// Whether it can be tested here; false is for a person's machine only, and says why.
    pub fn can_run(self) -> bool {
        match self {
            Self::Builtin => run_lab::can_run(),
            Self::Crun => run_lab::can_run_with("crun"),
            Self::Runc => run_lab::can_run_with("runc"),
            Self::Apptainer => run_lab::can_run_with("apptainer"),
        }
    }

    pub fn flags(self) -> Vec<String> {
        let flag = match self {
            Self::Builtin => "--runtime-engine=builtin",
            Self::Crun => "--oci-runtime=crun",
            Self::Runc => "--oci-runtime=runc",
            Self::Apptainer => "--runtime-engine=apptainer",
        };
        vec![flag.to_owned()]
    }

    /// What of this container is still on the node; nothing should be.
    pub async fn left_overs(self, uuid: &ContainerUuid) -> Vec<String> {
        run_lab::left_overs(uuid)
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    }
}

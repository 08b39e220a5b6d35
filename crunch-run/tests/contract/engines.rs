//! The engines under test: how crunch-run is told to use each, and what they leave on this node.

use arvados_client::ContainerUuid;

use crate::run_lab;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Builtin,
}

impl Engine {
    /// Whether it can be tested here; false is for a person's machine only, and says why.
    pub fn can_run(self) -> bool {
        run_lab::can_run()
    }

    pub fn flags(self) -> Vec<String> {
        match self {
            Self::Builtin => vec!["--runtime-engine=builtin".to_owned()],
        }
    }

    /// What of this container is still on the node; nothing should be.
    pub async fn left_overs(self, uuid: &ContainerUuid) -> Vec<String> {
        run_lab::left_overs(uuid)
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    }
}

//! Checks podman's OCI runtime against this node's control groups: crun fails every container on a
//! hybrid layout whose version 2 hierarchy has controllers.

use std::fs;
use std::path::Path;

use cgroup::{Layout, Mode};

/// Whether the version 2 hierarchy of a hybrid layout has controllers.
pub fn has_hybrid_controllers() -> bool {
    let Ok(layout) = Layout::of_this_process() else {
        return false;
    };
    let controllers = layout.v2().map(|v2| v2.mount.join("cgroup.controllers"));
    let text = controllers.and_then(|file| fs::read_to_string(file).ok());
    layout.mode == Mode::Hybrid && text.is_some_and(|text| !text.trim().is_empty())
}

/// Why a runtime, by name or path, fails every container on a node with such a layout.
pub fn incompatibility(runtime: &str) -> Option<String> {
    let name = Path::new(runtime).file_name()?.to_str()?;
    (name == "crun").then(|| {
        "its OCI runtime crun refuses this node's control groups (hybrid: version 1, and version 2 with controllers); \
         set runtime = \"runc\" below [engine] in /etc/containers/containers.conf (or in an ordinary user's \
         ~/.config/containers/containers.conf), install runc, and restart podman's service"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crun_refuses_hybrid_control_groups() {
        for (runtime, refuses) in [
            ("crun", true),
            ("/usr/bin/crun", true),
            ("runc", false),
            ("/opt/crun/bin/runc", false),
            ("", false),
        ] {
            let incompatibility = incompatibility(runtime);
            assert_eq!(incompatibility.is_some(), refuses, "{runtime}");
            let mend = "runtime = \"runc\"";
            assert!(incompatibility.is_none_or(|words| words.contains(mend)));
        }
    }
}

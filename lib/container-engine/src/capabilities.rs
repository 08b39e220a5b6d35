//! What root may do in a container: its capabilities (capabilities(7)), the same with each engine
//! that can set them.
//!
//! Input: what the site adds with `--cap-add`. Output: one set. The set of every container is that
//! of Podman: Docker's, but it writes no records to the node's audit log, makes no device nodes and
//! opens no raw sockets. On the node's network, raw sockets read everybody's packets.

use std::collections::HashSet;

pub use oci_spec::runtime::Capability;
use serde::{Deserialize, Serialize};

const DEFAULT: [Capability; 11] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::NetBindService,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// The capabilities of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(HashSet<Capability>);

impl Default for Capabilities {
    fn default() -> Self {
        Self(DEFAULT.into())
    }
}

impl Capabilities {
    /// Those of every container, and `added`.
    pub fn with(added: &[Capability]) -> Self {
        Self(DEFAULT.iter().chain(added).copied().collect())
    }

    pub(crate) fn set(&self) -> &HashSet<Capability> {
        &self.0
    }

    /// Their names as Docker has them, such as `NET_RAW`, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.iter().map(Capability::to_string).collect();
        names.sort();
        names
    }

    /// Whether the one with this name is among them: `CAP_NET_RAW`.
    pub(crate) fn has(&self, name: &str) -> bool {
        parse(name).is_ok_and(|capability| self.0.contains(&capability))
    }
}

/// Reads a name of capabilities(7), with or without `CAP_`, in any case.
pub fn parse(name: &str) -> Result<Capability, String> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    short
        .parse()
        .map_err(|_| format!("{name:?} is no capability; capabilities(7) names them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_site_adds_to_the_set_of_every_container() {
        let all = Capabilities::with(&[Capability::NetRaw, Capability::Chown]);
        let base = Capabilities::default();
        let added: Vec<_> = all.set().difference(base.set()).collect();
        assert_eq!(added, [&Capability::NetRaw]);
        assert!(all.has("CAP_NET_RAW") && !base.has("CAP_NET_RAW") && !all.has("CAP_NONE"));
        assert_eq!(all.names()[..2], ["CHOWN", "DAC_OVERRIDE"]);
    }

    #[test]
    fn a_name_is_read_as_people_write_it() {
        for (name, expected) in [
            ("NET_RAW", Some(Capability::NetRaw)),
            ("CAP_SYS_PTRACE", Some(Capability::SysPtrace)),
            ("cap_mknod", Some(Capability::Mknod)),
            ("ALL", None),
            ("CAP_", None),
            ("", None),
        ] {
            assert_eq!(parse(name).ok(), expected, "{name}");
        }
    }
}

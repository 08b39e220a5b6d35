//! The maps of users and groups in the specification, of a user namespace that the runtime makes or
//! enters. `shim/id_map.rs` decides which users those are.

use std::path::Path;

use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{LinuxIdMapping, LinuxIdMappingBuilder};

use super::{SpecInput, Unprivileged};
use crate::shim::id_map::{IdMap, Range};

/// Where users of the container's own come from.
#[derive(Debug, Clone, Copy)]
pub struct SpecUsers<'a> {
    pub map: IdMap,
    /// The user namespace to enter; without one the runtime makes one with the map.
    pub namespace: Option<&'a Path>,
    /// What is mounted at /sys.
    pub sysfs: &'a Path,
}

/// The maps of users and groups of a user namespace that the runtime makes.
pub fn id_maps(input: &SpecInput<'_>) -> Option<[Vec<Range>; 2]> {
    match (input.own_users, input.unprivileged) {
        (Some(users), _) if users.namespace.is_none() => {
            let ranges = users.map.ranges().to_vec();
            Some([ranges.clone(), ranges])
        }
        (None, Some(Unprivileged { nested: true })) => {
            let ids = [input.identity.uid, input.identity.gid];
            Some(ids.map(|inside| {
                vec![Range {
                    inside,
                    outside: 0,
                    size: 1,
                }]
            }))
        }
        _ => None,
    }
}

pub fn id_mappings(ranges: Vec<Range>) -> Result<Vec<LinuxIdMapping>, OciSpecError> {
    let mapping = |range: Range| {
        LinuxIdMappingBuilder::default()
            .container_id(range.inside)
            .host_id(range.outside)
            .size(range.size)
            .build()
    };
    ranges.into_iter().map(mapping).collect()
}

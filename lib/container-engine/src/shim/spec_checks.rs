//! Checks of a container's specification that every engine makes before it creates anything.

use std::io;
use std::path::{Component, Path};

use crate::{ContainerSpec, StartError};

pub(crate) fn check_binds(spec: &ContainerSpec) -> Result<(), StartError> {
    for bind in &spec.binds {
        let plain = bind.target.is_absolute()
            && bind.target != Path::new("/")
            && bind
                .target
                .components()
                .all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        if !plain {
            return Err(StartError::BadBindTarget {
                target: bind.target.clone(),
            });
        }
        if let Err(error) = std::fs::metadata(&bind.host)
            && error.kind() == io::ErrorKind::NotFound
        {
            return Err(StartError::BindSourceMissing {
                host: bind.host.clone(),
                target: bind.target.clone(),
            });
        }
    }
    Ok(())
}

/// The kernel accepts no argument or variable longer than 32 pages. Runtimes fail too late to
/// report that.
pub(crate) fn check_argument_lengths(spec: &ContainerSpec) -> Result<(), StartError> {
    let max_length = 32 * procfs::page_size() as usize;
    // Each has a zero byte at its end.
    let mut arguments = spec.command.iter().map(|argument| argument.len() + 1);
    let mut variables = spec
        .environment
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2);
    if arguments.any(|length| length > max_length) || variables.any(|length| length > max_length) {
        return Err(StartError::ArgumentsTooLong {
            resolved: spec.command.first().cloned().unwrap_or_default(),
        });
    }
    Ok(())
}

//! The resources of the API as data: their attributes, types and uses.

pub mod attribute;
pub mod collections;
pub mod containers;
pub mod resource;
pub mod users;
pub mod workflows;

pub use attribute::{Attr, AttrType, humanise};
pub use collections::{COLLECTIONS, KEEP_SERVICES, LINKS, LOGS};
pub use containers::{CONTAINER_REQUESTS, CONTAINERS};
pub use resource::Resource;
pub use users::{GROUPS, TOKENS, USERS};
pub use workflows::WORKFLOWS;

/// Every resource with a table, in the order of the discovery document.
pub static ALL: [&Resource; 9] = [
    &TOKENS,
    &COLLECTIONS,
    &CONTAINERS,
    &CONTAINER_REQUESTS,
    &GROUPS,
    &LINKS,
    &LOGS,
    &USERS,
    &WORKFLOWS,
];

/// The part of a uuid that says its kind.
pub fn infix(uuid: &str) -> &str {
    uuid.split('-').nth(1).unwrap_or_default()
}

/// The resource of a uuid, by its infix.
pub fn by_uuid(uuid: &str) -> Option<&'static Resource> {
    let infix = infix(uuid);
    ALL.into_iter().find(|resource| resource.infix == infix)
}

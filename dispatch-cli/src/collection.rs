//! A stored collection: fetched by uuid or portable data hash, with its files as a tree; and the
//! query for the collections of a user.

use arvados_client::filter::Query;
use arvados_client::manifest::{FileTree, Manifest};
use arvados_client::{Client, ContainerUuid};

use crate::error::CliError;

/// A collection with its files.
#[derive(Debug)]
pub struct StoredCollection {
    /// Uuid or portable data hash, as the user wrote it.
    pub name: String,
    /// Portable data hash.
    pub pdh: String,
    pub tree: FileTree,
}

/// The collections of a user, or of all users; or those in the trash. The newest first.
pub fn newest_of(user: Option<&str>, trashed: bool) -> Query {
    let mut query = Query::new().order("modified_at desc").order("uuid desc");
    if let Some(user) = user {
        query = query.filter("owner_uuid", "=", user);
    }
    match trashed {
        true => query.filter("is_trashed", "=", true).include_trash(),
        false => query,
    }
}

/// Fetches a collection by uuid or portable data hash.
pub async fn open(client: &Client, name: &str) -> Result<StoredCollection, CliError> {
    let record = client.collection(name).await;
    let record = record.map_err(CliError::of_collection(name))?;
    let manifest = Manifest::parse(&record.manifest_text).map_err(|source| CliError::Manifest {
        collection: name.to_owned(),
        source,
    })?;
    let pdh = match &record.portable_data_hash {
        Some(pdh) => pdh.to_string(),
        None => manifest.pdh().to_string(),
    };
    Ok(StoredCollection {
        name: name.to_owned(),
        pdh,
        tree: manifest.tree(),
    })
}

/// The portable data hash of a collection; `None` if it is gone.
pub async fn portable_data_hash(client: &Client, uuid: &str) -> Result<Option<String>, CliError> {
    match client.collection(uuid).await {
        Ok(collection) => Ok(collection.portable_data_hash.map(|pdh| pdh.to_string())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl StoredCollection {
    /// The file or directory at `path` as a tree of its own.
    pub fn subtree(&self, path: &str) -> Result<FileTree, CliError> {
        self.tree.subtree(path).map_err(|_| CliError::NoPath {
            collection: self.name.clone(),
            path: path.to_owned(),
        })
    }
}

/// Whether crunch-run gave this name to a collection in the trash, from which the server makes the
/// output or the log of each request.
pub fn is_original(name: &str) -> bool {
    let of = |beginning| name.strip_prefix(beginning);
    let container = of("output for ").or_else(|| of("logs for "));
    container.is_some_and(|uuid| ContainerUuid::parse(uuid).is_ok())
}

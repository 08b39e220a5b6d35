//! A stored collection as the command needs it: its name, and its files.

use arvados_client::Client;
use arvados_client::manifest::{FileTree, Manifest};

use crate::failure::Failure;

/// A collection and what is in it.
#[derive(Debug)]
pub struct Stored {
    /// As it was asked for.
    pub name: String,
    /// Its content's name.
    pub pdh: String,
    /// Its files.
    pub tree: FileTree,
}

/// By uuid or portable data hash.
pub async fn open(client: &Client, name: &str) -> Result<Stored, Failure> {
    let record = client.collection(name).await.map_err(|error| {
        if error.is_not_found() {
            Failure::NoCollection(name.to_owned())
        } else {
            error.into()
        }
    })?;
    let manifest = Manifest::parse(&record.manifest_text).map_err(|source| Failure::Manifest {
        collection: name.to_owned(),
        source,
    })?;
    let pdh = match &record.portable_data_hash {
        Some(pdh) => pdh.to_string(),
        None => manifest.pdh().to_string(),
    };
    Ok(Stored {
        name: name.to_owned(),
        pdh,
        tree: manifest.tree(),
    })
}

impl Stored {
    /// The file or directory at `path` as a tree of its own.
    pub fn part(&self, path: &str) -> Result<FileTree, Failure> {
        self.tree.subtree(path).map_err(|_| Failure::NoPath {
            collection: self.name.clone(),
            path: path.to_owned(),
        })
    }
}

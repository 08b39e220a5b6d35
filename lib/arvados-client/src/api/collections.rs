//! Calls for collections.

use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::error::Error;
use crate::records::Collection;

impl Client {
    /// Fetches a collection by uuid or portable data hash, with a manifest signed for this token.
    pub async fn collection(&self, uuid_or_pdh: &str) -> Result<Collection, Error> {
        let name = uuid_or_pdh.replace('+', "%2B");
        self.get(format!("collections/{name}")).await
    }

    /// Creates a collection. A name that is in use gets a suffix.
    pub async fn create_collection(&self, attributes: Value) -> Result<Collection, Error> {
        let body = json!({"collection": attributes, "ensure_unique_name": true});
        self.send(Call::post("collections", body)).await
    }
}

//! Input and output of an API handler.

use std::sync::Arc;

use rusqlite::Connection;
use serde_json::Value;

use super::params::Params;
use crate::app::App;
use crate::auth::Access;
use crate::auth::Caller;
use crate::error::Result;
use crate::store::transaction::Tx;
use crate::store::writer::WriteOrigin;

/// An authenticated request.
pub struct Call {
    pub app: Arc<App>,
    pub caller: Caller,
    /// For whom it writes.
    pub origin: WriteOrigin,
    pub params: Params,
    pub if_match: Option<String>,
    /// `host:port` of this server, as the client addressed it.
    pub host: String,
    pub remote: String,
}

impl Call {
    /// Queues a write and waits for its commit.
    pub fn write<T, F>(&self, work: F) -> Result<T>
    where
        F: FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        // So that the writer only looks at what has changed since. Dispatchers need no reader here.
        if !self.caller.is_admin {
            let prepare = |connection: &Connection| Access::new(connection, &self.caller).prepare();
            self.app.readers.read(prepare)?;
        }
        self.app.writer.write(self.origin.clone(), work)
    }
}

/// A successful response.
#[derive(Debug)]
pub struct Reply {
    pub body: Value,
    pub etag: Option<String>,
}

impl From<Value> for Reply {
    fn from(body: Value) -> Self {
        Reply { body, etag: None }
    }
}

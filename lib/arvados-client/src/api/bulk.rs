//! Bulk calls for many records at once, an extension of dispatch-api that Arvados does not have.

use serde::de::Error as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::NewToken;
use crate::client::{Call, Client};
use crate::error::{ApiError, Error, StatusCode};
use crate::ids::ContainerUuid;
use crate::records::{Authorization, Discovery, LockReply};
use crate::token::Token;

/// A lock to request.
#[derive(Debug, Clone)]
pub struct WantedLock {
    /// Token that will hold the lock.
    pub by: Token,
    /// The container.
    pub uuid: ContainerUuid,
    /// Etag of the record as it was read.
    pub etag: String,
}

/// Result of each item, in the order of the items.
pub type Each<T> = Vec<Result<T, Error>>;

/// Maximum number of items per bulk call, as the server announces; 1 if it has no such call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// Maximum number of tokens, and of their locks, per call.
    pub starts: usize,
    /// Log entries.
    pub logs: usize,
    /// Changes of container requests.
    pub updates: usize,
}

impl Bulk {
    /// Limits of a server without bulk calls.
    pub const NONE: Bulk = Bulk {
        starts: 1,
        logs: 1,
        updates: 1,
    };
}

/// A log entry to create.
#[derive(Debug, Clone, Serialize)]
pub struct NewLog {
    /// Uuid of the object.
    pub object_uuid: String,
    /// Type of the entry.
    pub event_type: &'static str,
    /// Properties.
    pub properties: Value,
}

impl Discovery {
    /// The limits that the server announces.
    pub fn bulk(&self) -> Bulk {
        let max_items = |resource: &str, method: &str| {
            let methods = self.extra.get("resources")?.get(resource)?.get("methods")?;
            methods.get(method)?.get("maxItems")?.as_u64()
        };
        let tokens = max_items("api_client_authorizations", "bulk_create");
        let locks = max_items("containers", "bulk_lock");
        let both = tokens.zip(locks).map(|(tokens, locks)| tokens.min(locks));
        let items =
            |max_items: Option<u64>| usize::try_from(max_items.unwrap_or(1)).unwrap_or(1).max(1);
        Bulk {
            starts: items(both),
            logs: items(max_items("logs", "bulk_create")),
            updates: items(max_items("container_requests", "bulk_update")),
        }
    }
}

#[derive(Deserialize)]
struct BulkReply {
    items: Vec<ItemReply>,
}

/// Reply for one item: a record, or an error.
#[derive(Deserialize)]
struct ItemReply {
    #[serde(default)]
    record: Option<Value>,
    #[serde(default)]
    status: u16,
    #[serde(default)]
    errors: Vec<String>,
}

impl Client {
    /// Creates tokens for the same user. An error of the whole call applies to each token like that
    /// of a single call.
    pub async fn create_tokens(&self, new: &[NewToken]) -> Result<Each<Authorization>, Error> {
        let call = bulk_call("api_client_authorizations/bulk_create", json!(new));
        self.send_bulk(new.len(), call).await
    }

    /// Locks containers (Queued → Locked), each for its own token, if the etag is unchanged.
    pub async fn lock_containers(&self, wanted: &[WantedLock]) -> Result<Each<LockReply>, Error> {
        let items: Value = wanted
            .iter()
            .map(|lock| {
                let mut item = json!({"uuid": lock.uuid, "token": lock.by.expose()});
                if !lock.etag.is_empty() {
                    item["etag"] = lock.etag.as_str().into();
                }
                item
            })
            .collect();
        self.send_bulk(wanted.len(), bulk_call("containers/bulk_lock", items))
            .await
    }

    /// Creates log entries.
    pub async fn create_logs(&self, new: &[NewLog]) -> Result<Each<()>, Error> {
        let call = bulk_call("logs/bulk_create", json!(new));
        let made = self.send_bulk(new.len(), call).await?;
        Ok(made.into_iter().map(without_record).collect())
    }

    /// Changes container requests: each item has the uuid of one and the attributes to change.
    pub async fn update_container_requests(&self, items: Vec<Value>) -> Result<Each<()>, Error> {
        let requested = items.len();
        let call = bulk_call("container_requests/bulk_update", items.into());
        let changed = self.send_bulk(requested, call.repeatable()).await?;
        Ok(changed.into_iter().map(without_record).collect())
    }

    async fn send_bulk<T: DeserializeOwned>(
        &self,
        requested: usize,
        call: Call,
    ) -> Result<Each<T>, Error> {
        let (label, path) = (call.label(), call.path.clone());
        let reply: BulkReply = self.send(call).await?;
        let unreadable = |source| self.undecodable(label.clone(), source);
        let received = reply.items.len();
        if received != requested {
            let text = format!("{received} replies to {requested} items");
            return Err(unreadable(serde_json::Error::custom(text)));
        }
        let each = reply.items.into_iter().map(|item| match item.record {
            Some(record) => serde_json::from_value(record).map_err(unreadable),
            None => Err(Error::Api(ApiError {
                // An invalid status counts as a server error, whose effect is unknown.
                status: StatusCode::from_u16(item.status)
                    .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                messages: item.errors,
                request_id: path.clone(),
                retry_after: None,
            })),
        });
        Ok(each.collect())
    }
}

fn without_record(one: Result<Value, Error>) -> Result<(), Error> {
    one.map(drop)
}

fn bulk_call(path: &str, items: Value) -> Call {
    Call::post(path, json!({"items": items}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_has_both_calls_is_asked_for_many() {
        let methods = |tokens: Value, locks: Value, logs: Value, requests: Value| -> Discovery {
            let document = json!({"resources": {
                "api_client_authorizations": {"methods": tokens},
                "containers": {"methods": locks},
                "logs": {"methods": logs},
                "container_requests": {"methods": requests},
            }});
            serde_json::from_value(document).unwrap()
        };
        let create = json!({"bulk_create": {"maxItems": 250}});
        let lock = json!({"bulk_lock": {"maxItems": 100}});
        let update = json!({"bulk_update": {"maxItems": 50}});
        let none = || json!({});
        let bulk = |starts, logs, updates| Bulk {
            starts,
            logs,
            updates,
        };
        #[rustfmt::skip]
        let rows = [
            (methods(create.clone(), lock.clone(), create.clone(), update), bulk(100, 250, 50)),
            (methods(create.clone(), lock.clone(), none(), none()), bulk(100, 1, 1)),
            (methods(create.clone(), none(), create, none()), bulk(1, 250, 1)),
            (methods(json!({"create": {}}), lock, none(), none()), Bulk::NONE),
            (serde_json::from_value(json!({"resources": []})).unwrap(), Bulk::NONE),
            (serde_json::from_value(json!({})).unwrap(), Bulk::NONE),
        ];
        for (document, bulk) in rows {
            assert_eq!(document.bulk(), bulk, "{:?}", document.extra);
        }
    }

    #[test]
    fn a_call_s_debug_shows_no_token() {
        let call = Call::post(
            "containers/bulk_lock",
            json!({"items": [{"token": "v2/x/sesame"}]}),
        );
        assert_eq!(format!("{call:?}"), "POST containers/bulk_lock");
    }
}

//! Calls for many records at once, where a server has them: an extension that Arvados itself does not know.

use serde::de::Error as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::NewToken;
use crate::client::{Call, Client};
use crate::error::{ApiError, Error, StatusCode};
use crate::ids::ContainerUuid;
use crate::records::{Authorization, Discovery, LockReply};
use crate::token::Token;

/// A lock to be asked for.
#[derive(Debug, Clone)]
pub struct WantedLock {
    /// The token that is to hold it.
    pub by: Token,
    /// Of which container.
    pub uuid: ContainerUuid,
    /// The version that was seen.
    pub etag: String,
}

/// What came of each item, in the order of the items.
pub type Each<T> = Vec<Result<T, Error>>;

/// How many items a server takes in one call, by its own word; 1: it has no such call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// Tokens to be made, and locks to be asked for with them.
    pub starts: usize,
    /// Entries of the log.
    pub logs: usize,
}

impl Bulk {
    /// Of a server that does not know such calls.
    pub const NONE: Bulk = Bulk { starts: 1, logs: 1 };
}

/// An entry for the server's `logs`.
#[derive(Debug, Clone, Serialize)]
pub struct NewLog {
    /// About what.
    pub object_uuid: String,
    /// What kind of entry.
    pub event_type: &'static str,
    /// Anything.
    pub properties: Value,
}

impl Discovery {
    /// What the server has of such calls.
    pub fn bulk(&self) -> Bulk {
        let most = |resource: &str, method: &str| {
            let methods = self.extra.get("resources")?.get(resource)?.get("methods")?;
            methods.get(method)?.get("maxItems")?.as_u64()
        };
        let tokens = most("api_client_authorizations", "bulk_create");
        let locks = most("containers", "bulk_lock");
        let both = tokens.zip(locks).map(|(tokens, locks)| tokens.min(locks));
        let items = |most: Option<u64>| usize::try_from(most.unwrap_or(1)).unwrap_or(1).max(1);
        Bulk {
            starts: items(both),
            logs: items(most("logs", "bulk_create")),
        }
    }
}

#[derive(Deserialize)]
struct Answers {
    items: Vec<Answer>,
}

/// One item's: a record, or a refusal.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    record: Option<Value>,
    #[serde(default)]
    status: u16,
    #[serde(default)]
    errors: Vec<String>,
}

impl Client {
    /// Makes tokens for the same user. An error of the call as a whole says as much of each as that of a single call.
    pub async fn create_tokens(&self, new: &[NewToken]) -> Result<Each<Authorization>, Error> {
        let items = new
            .iter()
            .map(|new| json!({"scopes": new.scopes, "expires_at": new.expires_at.to_string()}));
        self.bulk("api_client_authorizations/bulk_create", items.collect())
            .await
    }

    /// Queued → Locked, each for its own token, if the record is still the one seen.
    pub async fn lock_containers(&self, wanted: &[WantedLock]) -> Result<Each<LockReply>, Error> {
        let items = wanted.iter().map(|lock| {
            let mut item = json!({"uuid": lock.uuid, "token": lock.by.expose()});
            if !lock.etag.is_empty() {
                item["etag"] = lock.etag.as_str().into();
            }
            item
        });
        self.bulk("containers/bulk_lock", items.collect()).await
    }

    /// Writes entries to the server's `logs`.
    pub async fn create_logs(&self, new: &[NewLog]) -> Result<Each<()>, Error> {
        let items = new.iter().map(|entry| json!(entry)).collect();
        let made: Each<Value> = self.bulk("logs/bulk_create", items).await?;
        Ok(made.into_iter().map(|one| one.map(drop)).collect())
    }

    async fn bulk<T: DeserializeOwned>(
        &self,
        path: &str,
        items: Vec<Value>,
    ) -> Result<Each<T>, Error> {
        let asked = items.len();
        let answers: Answers = self.send(Call::post(path, json!({"items": items}))).await?;
        let unreadable = |source| Error::Undecodable {
            host: self.endpoint().host.clone(),
            call: format!("POST {path}"),
            source,
        };
        let got = answers.items.len();
        if got != asked {
            let text = format!("{got} answers to {asked} items");
            return Err(unreadable(serde_json::Error::custom(text)));
        }
        let each = answers.items.into_iter().map(|answer| match answer.record {
            Some(record) => serde_json::from_value(record).map_err(unreadable),
            None => Err(Error::Api(ApiError {
                // What is no status is nothing that can be relied on.
                status: StatusCode::from_u16(answer.status)
                    .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                messages: answer.errors,
                request_id: path.to_owned(),
                retry_after: None,
            })),
        });
        Ok(each.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_has_both_calls_is_asked_for_many() {
        let methods = |tokens: Value, locks: Value, logs: Value| -> Discovery {
            let document = json!({"resources": {
                "api_client_authorizations": {"methods": tokens},
                "containers": {"methods": locks},
                "logs": {"methods": logs},
            }});
            serde_json::from_value(document).unwrap()
        };
        let create = json!({"bulk_create": {"maxItems": 250}});
        let lock = json!({"bulk_lock": {"maxItems": 100}});
        #[rustfmt::skip]
        let rows = [
            (methods(create.clone(), lock.clone(), create.clone()), Bulk { starts: 100, logs: 250 }),
            (methods(create.clone(), lock.clone(), json!({})), Bulk { starts: 100, logs: 1 }),
            (methods(create.clone(), json!({}), create), Bulk { starts: 1, logs: 250 }),
            (methods(json!({"create": {}}), lock, json!({})), Bulk::NONE),
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

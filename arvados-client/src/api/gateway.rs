//! The way in to a running container: a connection that the API server uses to ask crunch-run for
//! live logs.

use http::header::{CONNECTION, UPGRADE};
use reqwest::Upgraded;
use tokio::time::timeout;

use crate::client::{Client, request_id};
use crate::error::{ApiError, Error, StatusCode, messages};
use crate::ids::ContainerUuid;
use crate::records::Discovery;
use crate::token::Token;

/// Maximum number of bytes read of a refusal.
const REFUSAL_LIMIT: usize = 10_000;
/// Names the process of the API server that holds the other end.
const INTERNAL_URL: &str = "X-Arvados-Internal-Url";

/// A connection on which the server opens yamux streams; this side is the yamux client.
#[derive(Debug)]
pub struct GatewayTunnel {
    /// Bytes in both directions.
    pub connection: Upgraded,
    /// The process of the API server at the other end, for the record's `gateway_address`.
    pub internal_url: Option<String>,
}

impl Client {
    /// Asks for a tunnel to this container's gateway. One attempt, within the time of one call:
    /// the caller repeats it.
    pub async fn gateway_tunnel(
        &self,
        uuid: &ContainerUuid,
        secret: &Token,
    ) -> Result<GatewayTunnel, Error> {
        let limit = self.endpoint().call_timeout;
        let asking = timeout(limit, self.ask_for_tunnel(uuid, secret));
        asking.await.unwrap_or_else(|_| {
            Err(Error::Tunnel {
                host: self.endpoint().host.clone(),
                detail: format!("no answer within {} s", limit.as_secs()),
            })
        })
    }

    async fn ask_for_tunnel(
        &self,
        uuid: &ContainerUuid,
        secret: &Token,
    ) -> Result<GatewayTunnel, Error> {
        let host = &self.endpoint().host;
        let request_id = request_id();
        // No timeout of the request itself: it would end the tunnel, too.
        let asked = self
            .http()
            .post(format!(
                "https://{host}/arvados/v1/connect/{uuid}/gateway_tunnel"
            ))
            .bearer_auth(self.endpoint().token.expose())
            .header("X-Request-Id", &request_id)
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "tunnel")
            .form(&[("auth_secret", secret.expose())])
            .send();
        let mut response = asked.await.map_err(|source| self.broken(source))?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let mut body = Vec::new();
            while let Ok(Some(chunk)) = response.chunk().await
                && body.len() < REFUSAL_LIMIT
            {
                body.extend_from_slice(&chunk);
            }
            return Err(Error::Api(ApiError {
                status,
                messages: messages(&body),
                request_id,
                retry_after: None,
            }));
        }
        let internal_url = response
            .headers()
            .get(INTERNAL_URL)
            .and_then(|value| value.to_str().ok())
            .filter(|url| !url.is_empty())
            .map(str::to_owned);
        let connection = response
            .upgrade()
            .await
            .map_err(|source| self.broken(source))?;
        Ok(GatewayTunnel {
            connection,
            internal_url,
        })
    }
}

impl Discovery {
    /// Whether the server takes any gateway secret from the attempt that holds the container's
    /// lock, as dispatch-api says of itself. Arvados derives the secret from its root token, and
    /// has no such key.
    pub fn takes_any_gateway_secret(&self) -> bool {
        let key = self.extra.get("gatewayAuth");
        key.and_then(|value| value.as_str()) == Some("attempt-token")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_server_that_says_so_takes_any_secret() {
        for (document, takes_any) in [
            (json!({}), false),
            (json!({"gatewayAuth": "attempt-token"}), true),
            (json!({"gatewayAuth": "something new"}), false),
            (json!({"gatewayAuth": true}), false),
        ] {
            let discovery: Discovery = serde_json::from_value(document.clone()).unwrap();
            assert_eq!(
                discovery.takes_any_gateway_secret(),
                takes_any,
                "{document}"
            );
        }
    }
}

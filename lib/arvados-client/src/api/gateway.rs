//! Gateway tunnels: a connection over which the API server requests live logs from crunch-run.

use http::header::{CONNECTION, UPGRADE};
use reqwest::Upgraded;
use tokio::time::timeout;

use crate::client::{Client, request_id};
use crate::error::{ApiError, Error, StatusCode, messages};
use crate::ids::ContainerUuid;
use crate::records::Discovery;
use crate::token::Token;

/// Maximum number of bytes read of an error response.
const MAX_ERROR_BODY: usize = 10_000;
/// Header with the process of the API server at the other end.
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
    /// Opens a tunnel to the gateway of this container. One attempt, within the timeout of a call;
    /// the caller retries it.
    pub async fn gateway_tunnel(
        &self,
        uuid: &ContainerUuid,
        secret: &Token,
    ) -> Result<GatewayTunnel, Error> {
        let limit = self.endpoint().call_timeout;
        let request = timeout(limit, self.request_tunnel(uuid, secret));
        request.await.unwrap_or_else(|_| {
            Err(Error::Tunnel {
                host: self.endpoint().host.clone(),
                detail: format!("no answer within {} s", limit.as_secs()),
            })
        })
    }

    async fn request_tunnel(
        &self,
        uuid: &ContainerUuid,
        secret: &Token,
    ) -> Result<GatewayTunnel, Error> {
        let host = &self.endpoint().host;
        let request_id = request_id();
        // A timeout of the request would end the tunnel, too.
        let sent = self
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
        let mut response = sent.await.map_err(|e| self.connection_error(e))?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let mut body = Vec::new();
            while let Ok(Some(chunk)) = response.chunk().await
                && body.len() < MAX_ERROR_BODY
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
        let internal_url = response.headers().get(INTERNAL_URL);
        let internal_url = internal_url.and_then(|value| value.to_str().ok());
        Ok(GatewayTunnel {
            internal_url: internal_url
                .filter(|url| !url.is_empty())
                .map(str::to_owned),
            connection: response
                .upgrade()
                .await
                .map_err(|e| self.connection_error(e))?,
        })
    }
}

impl Discovery {
    /// Whether the server accepts any gateway secret from the attempt that holds the lock, which
    /// dispatch-api announces. Arvados derives the secret from its root token, and does not have
    /// this key.
    pub fn takes_any_gateway_secret(&self) -> bool {
        self.announces("gatewayAuth", "attempt-token")
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

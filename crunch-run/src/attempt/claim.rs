//! Claims a container: reads the record, checks the lock and fetches the container's own token.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arvados_client::client::Call;
use arvados_client::keep::{KeepClient, KeepOptions, ServiceList};
use arvados_client::records::{Authorization, Container, ContainerState, Mount};
use arvados_client::{Client, ContainerUuid, Error, Token, TokenUuid};
use serde_json::Value;

use super::failure::Failure;
use super::image::ImageFile;
use super::server_info::ServerInfo;
use crate::own_record;

/// A container that this attempt may run, with clients for it.
#[derive(Debug)]
pub struct Claim {
    pub record: Container,
    /// The record as the server sent it.
    pub raw: Value,
    pub own_token: TokenUuid,
    /// Properties of the server.
    pub server: ServerInfo,
    /// Keep with the attempt token, for the log.
    pub keep: KeepClient,
    /// API with the container's token: inputs, image and output.
    pub container_client: Client,
    pub container_keep: KeepClient,
    /// Keep with the container's token and the cluster's default storage classes.
    pub default_keep: KeepClient,
}

/// Reads all that needs the attempt token, and checks that the attempt holds the lock of a
/// container in `state`. Two connections are used at most. Properties of the server may be cached
/// in `cache`.
pub async fn claim(
    client: &Client,
    uuid: &ContainerUuid,
    state: ContainerState,
    keep_budget: Duration,
    cache: Option<&Path>,
) -> Result<Claim, Failure> {
    let ours = async {
        let own_token = own_token(client).await?;
        let raw: Value = client
            .send(own_record::read(uuid))
            .await
            .map_err(|e| Failure::of_call("the record cannot be read", &e))?;
        let record: Container = serde_json::from_value(raw.clone()).map_err(|error| {
            Failure::NeverRan(format!("the record cannot be understood: {error}"))
        })?;
        check_lock(&record, &state, &own_token)?;
        let auth: Authorization = client
            .send(Call::get(format!("containers/{uuid}/auth")).known_record())
            .await
            .map_err(|e| Failure::of_call("the container's own token cannot be fetched", &e))?;
        Ok::<_, Failure>((own_token, raw, record, auth))
    };
    let (ours, server) = tokio::join!(ours, ServerInfo::of(client, cache));
    let (own_token, raw, record, auth) = ours?;
    let no_keep = |e: Error| Failure::of_call("the Keep services cannot be looked up", &e);
    let server = server.map_err(no_keep)?;
    let defaults = KeepOptions::default();
    let options = KeepOptions {
        replicas: server.replicas,
        retry_budget: defaults.retry_budget.min(keep_budget),
        ..defaults
    };
    let services = client
        .keep_with_services(&server.services, options.clone())
        .map_err(no_keep)?;

    // The same token text everywhere, because block signatures depend on it.
    let token = auth
        .token()
        .map(|token| Token::new(format!("{}/{uuid}", token.expose())))
        .ok_or_else(|| {
            Failure::NeverRan("the API server did not return the container's token".to_owned())
        })?;
    let [keep, container_keep, default_keep] =
        keeps(client, &token, &record, services.services(), options);
    Ok(Claim {
        keep,
        default_keep,
        // The server has just returned the token, so it is valid.
        container_client: client.with_token(token).with_accepted_token(),
        container_keep,
        record,
        raw,
        own_token,
        server,
    })
}

/// Keep clients: with the attempt's token; with the container's token, in the storage classes of
/// its output; with that token, in the cluster's default classes.
fn keeps(
    client: &Client,
    container: &Token,
    record: &Container,
    services: &Arc<ServiceList>,
    options: KeepOptions,
) -> [KeepClient; 3] {
    let keep_as = |token: &Token, options: KeepOptions| {
        let (http, services) = (client.http().clone(), services.clone());
        KeepClient::new(http, token.clone(), services, options)
    };
    let with_classes = KeepOptions {
        storage_classes: record.output_storage_classes.clone(),
        ..options.clone()
    };
    [
        keep_as(&client.endpoint().token, options.clone()),
        keep_as(container, with_classes),
        keep_as(container, options),
    ]
}

async fn own_token(client: &Client) -> Result<TokenUuid, Failure> {
    match client.endpoint().token.uuid() {
        Some(uuid) => Ok(uuid),
        None => client
            .current_token()
            .await
            .map(|token| token.uuid)
            .map_err(|e| Failure::of_call("the attempt's token is not accepted", &e)),
    }
}

fn check_lock(record: &Container, state: &ContainerState, own: &TokenUuid) -> Result<(), Failure> {
    if record.state != *state {
        return Err(Failure::NotOurs(format!(
            "the container is {}, not {state}",
            record.state
        )));
    }
    match &record.locked_by_uuid {
        Some(holder) if holder == own => {}
        Some(holder) => {
            return Err(Failure::NotOurs(format!(
                "the container is locked by {holder}, and this attempt is {own}"
            )));
        }
        None => {
            return Err(Failure::NotOurs(
                "the record does not say who holds its lock".to_owned(),
            ));
        }
    }
    // A container that ran already is delivered even if its priority is 0.
    if *state == ContainerState::Locked && record.priority <= 0 {
        return Err(Failure::NeverRan("its priority is 0".to_owned()));
    }
    Ok(())
}

/// Fetches all that needs the container's token: secret mounts and the image collection.
///
/// A server without secret mounts for a container returns an empty object, so a 404 never means
/// "none": a command must not run without its secrets.
pub async fn inputs(claim: &Claim) -> Result<(BTreeMap<String, Mount>, ImageFile), Failure> {
    let secret = Call::get(format!("containers/{}/secret_mounts", claim.record.uuid));
    let (secret, image) = tokio::join!(
        claim.container_client.send::<Value>(secret.known_record()),
        ImageFile::find(&claim.container_client, &claim.record.container_image),
    );
    let secret = match secret {
        Ok(mut answer) => serde_json::from_value::<Option<_>>(answer["secret_mounts"].take())
            .map_err(|_| {
                // The parse error would contain the secret.
                Failure::NeverRan("the secret mounts cannot be understood".to_owned())
            })?
            .unwrap_or_default(),
        Err(error) => {
            return Err(Failure::of_call("the secret mounts cannot be read", &error));
        }
    };
    Ok((secret, image?))
}

#[cfg(test)]
pub mod tests {
    use arvados_client::api::NewToken;
    use arvados_client::keep::{BlockStore, Locator};
    use arvados_client::{Endpoint, scopes};
    use dispatch_api::{Options, Server};
    use serde_json::json;
    use wiremock::matchers::method;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    #[test]
    fn only_the_lock_s_holder_goes_on() {
        let own = TokenUuid::generate("zzzzz");
        let other = TokenUuid::generate("zzzzz");
        let record = |state: &str, holder: Option<&TokenUuid>, priority: i64| -> Container {
            serde_json::from_value(serde_json::json!({
                "uuid": ContainerUuid::generate("zzzzz"), "state": state, "locked_by_uuid": holder, "priority": priority
            }))
            .unwrap()
        };
        let (locked, running) = (ContainerState::Locked, ContainerState::Running);
        assert!(check_lock(&record("Locked", Some(&own), 1), &locked, &own).is_ok());
        assert!(check_lock(&record("Running", Some(&own), 0), &running, &own).is_ok());
        assert!(check_lock(&record("Locked", Some(&own), 1), &running, &own).is_err());
        for (state, holder, words) in [
            ("Queued", None, "is Queued"),
            ("Running", Some(&own), "is Running"),
            ("Cancelled", None, "is Cancelled"),
            ("Locked", Some(&other), "locked by"),
            ("Locked", None, "does not say"),
        ] {
            match check_lock(&record(state, holder, 1), &locked, &own) {
                Err(Failure::NotOurs(text)) => assert!(text.contains(words), "{text}"),
                other => panic!("{state}: {other:?}"),
            }
        }
        let on_hold = check_lock(&record("Locked", Some(&own), 0), &locked, &own);
        assert!(matches!(on_hold, Err(Failure::NeverRan(_))));
    }

    /// The user of a server, and a container of his that is locked by the client beside it.
    pub async fn locked(server: &Server, keep: &str, more: Value) -> (Client, Container) {
        let ready = serde_json::to_value(server.ready()).unwrap();
        let client = |token: Token| {
            let mut endpoint = Endpoint::new(ready["host"].as_str().unwrap(), token).unwrap();
            endpoint.ca_file = Some(ready["certificate"].as_str().unwrap().into());
            endpoint.keep_services = vec![keep.to_owned()];
            Client::new(endpoint).unwrap()
        };
        let of = |who: &str| {
            let path = ready["tokens"][who].as_str().unwrap();
            client(Token::new(std::fs::read_to_string(path).unwrap()))
        };
        let (user, dispatch) = (of("user"), of("dispatch"));
        let image = user.create_collection(json!({"manifest_text": ""}));
        let mut request = json!({
            "state": "Committed", "priority": 1, "command": ["true"], "output_path": "/out", "cwd": ".",
            "container_image": image.await.unwrap().portable_data_hash,
            "mounts": {"/out": {"kind": "tmp", "capacity": 1}},
            "runtime_constraints": {"vcpus": 1, "ram": 1 << 28},
        });
        for (name, value) in more.as_object().unwrap() {
            request[name] = value.clone();
        }
        let request = user.create_container_request(request).await.unwrap();
        let uuid = request.container_uuid.unwrap();
        let wanted = NewToken {
            scopes: scopes::attempt(&uuid, "test"),
            expires_at: jiff::Timestamp::now() + Duration::from_secs(3600),
        };
        let made = dispatch.create_token(&wanted).await.unwrap();
        let attempt = client(made.token().unwrap());
        attempt.lock_container(&uuid, "").await.unwrap();
        (attempt, user.container(&uuid).await.unwrap())
    }

    #[tokio::test]
    async fn the_output_goes_to_its_storage_classes_and_the_log_where_the_site_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path().join("state"));
        let server = Server::start(&options).await.unwrap();
        let stores = MockServer::start().await;
        let reply = ResponseTemplate::new(200)
            .set_body_string(format!("{}\n", Locator::of(b"foo")))
            .insert_header("X-Keep-Replicas-Stored", "2")
            .insert_header(
                "X-Keep-Storage-Classes-Confirmed",
                "hot=2, archive=2, default=2",
            );
        Mock::given(method("PUT"))
            .respond_with(reply)
            .mount(&stores)
            .await;
        let (client, mut record) = locked(&server, &stores.uri(), json!({})).await;
        let delivery_timeout = Duration::from_secs(10);
        let claim = claim(
            &client,
            &record.uuid,
            ContainerState::Locked,
            delivery_timeout,
            None,
        );
        let claim = claim.await.unwrap();
        // A record of another server; the one in this test has only one class.
        record.output_storage_classes = vec!["hot".into(), "archive".into()];
        let token = &claim.container_client.endpoint().token;
        let services = client.keep(KeepOptions::default()).await.unwrap();
        let options = KeepOptions::default();
        let [ours, output, default] = keeps(&client, token, &record, services.services(), options);
        for keep in [output, ours, claim.container_keep, claim.keep, default] {
            keep.put("foo".into()).await.unwrap();
        }
        let request: Vec<Option<String>> = stores
            .received_requests()
            .await
            .unwrap()
            .iter()
            .map(|request| request.headers.get("X-Keep-Storage-Classes"))
            .map(|classes| Some(classes?.to_str().ok()?.to_owned()))
            .collect();
        let [both, default] = ["hot, archive", "default"].map(|text| Some(text.to_owned()));
        assert_eq!(request, [both, None, default, None, None]);
        server.stop().await;
    }
}

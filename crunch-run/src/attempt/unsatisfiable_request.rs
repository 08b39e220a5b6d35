//! Checks for requests that crunch-run cannot satisfy, before anything is fetched.

use std::time::Duration;

use arvados_client::Client;
use arvados_client::client::Call;
use arvados_client::records::Container;
use serde_json::Value;

use super::failure::Failure;
use super::save_output::wants_classes;
use crate::logs::RunLog;
use crate::verdict::Reason;

/// Timeout of the call for the cluster's configuration.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a user error if the request cannot be satisfied.
pub async fn check(record: &Container, client: &Client, run_log: &RunLog) -> Result<(), Failure> {
    if let Some(reason) = service(record) {
        return Err(Failure::UserError(reason));
    }
    if !wants_classes(record) {
        return Ok(());
    }
    let call = Call::get("/arvados/v1/config").budget(CONFIG_TIMEOUT);
    match client.send::<Value>(call).await {
        Ok(config) => match unknown_class(record, &config) {
            Some(reason) => Err(Failure::UserError(reason)),
            None => Ok(()),
        },
        Err(error) => {
            run_log.write(format!(
                "Could not check the storage classes of the output: {error}"
            ));
            Ok(())
        }
    }
}

fn service(record: &Container) -> Option<Reason> {
    let ports = record.extra.get("published_ports");
    let ports: Vec<&str> = ports
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|ports| ports.keys().map(String::as_str))
        .collect();
    let is_service = record.extra.get("service").and_then(Value::as_bool);
    let what = match (ports.as_slice(), is_service) {
        ([], Some(true)) => "it is a service container".to_owned(),
        ([], _) => return None,
        (ports, _) => format!("it publishes ports ({})", ports.join(", ")),
    };
    Some(Reason::new(
        format!(
            "{what}, which this crunch-run cannot serve: ask for it without service and published_ports"
        ),
        "no client could connect to it while it runs, so it was not started",
    ))
}

/// Returns a reason if the cluster lacks a storage class. A server that does not list its classes
/// may have any.
fn unknown_class(record: &Container, config: &Value) -> Option<Reason> {
    let known = config["StorageClasses"].as_object()?;
    let unknown: Vec<&str> = record
        .output_storage_classes
        .iter()
        .map(String::as_str)
        .filter(|class| !known.contains_key(*class))
        .collect();
    if known.is_empty() || unknown.is_empty() {
        return None;
    }
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    Some(Reason::new(
        format!(
            "its output cannot be stored in storage class {}, which this cluster does not have: choose from {}",
            unknown.join(", "),
            names.join(", ")
        ),
        "output_storage_classes was compared with StorageClasses of the cluster's configuration",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(more: &Value) -> Container {
        let mut record = json!({"uuid": "zzzzz-dz642-0123456789abcde"});
        for (name, value) in more.as_object().unwrap() {
            record[name] = value.clone();
        }
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_container_that_publishes_ports_is_refused() {
        let port = json!({"80": {"access": "public", "label": "web", "initial_path": ""}});
        for (more, words) in [
            (json!({}), None),
            (json!({"service": false, "published_ports": {}}), None),
            (json!({"service": null, "published_ports": null}), None),
            (
                json!({"service": true}),
                Some("it is a service container, which"),
            ),
            (
                json!({"service": true, "published_ports": port}),
                Some("it publishes ports (80), which this crunch-run cannot serve"),
            ),
        ] {
            let reason = service(&record(&more)).map(|reason| reason.sentence);
            match (words, &reason) {
                (None, None) => {}
                (Some(words), Some(reason)) => assert!(reason.contains(words), "{reason}"),
                _ => panic!("{more}: {reason:?}"),
            }
        }
    }

    #[test]
    fn only_a_class_that_the_cluster_surely_lacks_is_a_mistake() {
        let classes = json!({"StorageClasses": {"default": {}, "archive": {}}});
        for (wanted, config, is_wrong) in [
            (json!(["default"]), &classes, false),
            (json!(["archive"]), &classes, false),
            (json!(["archive", "hot"]), &classes, true),
            (json!(["hot"]), &json!({}), false),
            (json!(["hot"]), &json!({"StorageClasses": {}}), false),
        ] {
            let record = record(&json!({"output_storage_classes": wanted}));
            let reason = unknown_class(&record, config);
            assert_eq!(reason.is_some(), is_wrong, "{wanted} {config}");
            if let Some(reason) = reason {
                let words = "storage class hot, which this cluster does not have: choose from archive, default";
                assert!(reason.sentence.contains(words), "{}", reason.sentence);
            }
        }
    }
}

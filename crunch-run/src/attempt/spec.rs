//! Translates the container record into the engine's specification. Pure.

use std::collections::BTreeMap;

use arvados_client::Endpoint;
use arvados_client::records::Container;

use super::settings::Settings;
use container_engine::{Limits, Network};

pub fn limits(record: &Container, settings: &Settings) -> Limits {
    let needs = &record.runtime_constraints;
    Limits {
        vcpus: (needs.vcpus > 0).then(|| f64::from(needs.vcpus)),
        memory_bytes: (settings.limit_memory && needs.ram > 0).then_some(needs.ram),
        pids: settings.site.pids,
        cpuset: settings.cpuset.clone(),
    }
}

pub fn network(record: &Container, settings: &Settings) -> Network {
    if record.runtime_constraints.api || settings.network_for_all {
        Network::Host
    } else {
        Network::None
    }
}

/// The environment of the container. With API access it includes the API endpoint; `container` is
/// the endpoint with the container's token.
pub fn environment(record: &Container, container: &Endpoint) -> BTreeMap<String, String> {
    let mut environment = record.environment.clone();
    if record.runtime_constraints.api {
        let insecure = if container.insecure { "1" } else { "" };
        for (name, value) in [
            ("ARVADOS_API_HOST", container.host.clone()),
            ("ARVADOS_API_TOKEN", container.token.expose().to_owned()),
            ("ARVADOS_API_HOST_INSECURE", insecure.to_owned()),
            ("ARVADOS_KEEP_SERVICES", container.keep_services.join(" ")),
        ] {
            environment.insert(name.to_owned(), value);
        }
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;
    use arvados_client::{ContainerUuid, Token};
    use clap::Parser;

    fn record(constraints: serde_json::Value) -> Container {
        serde_json::from_value(serde_json::json!({
            "uuid": ContainerUuid::generate("zzzzz"),
            "environment": {"A": "1", "ARVADOS_API_HOST": "elsewhere"},
            "runtime_constraints": constraints,
        }))
        .unwrap()
    }

    fn settings(flags: &[&str]) -> Settings {
        let uuid = ContainerUuid::generate("zzzzz");
        let given = ["crunch-run", uuid.as_str()]
            .into_iter()
            .chain(flags.iter().copied());
        let flags = crate::flags::Flags::parse_from(given);
        Settings::new(&flags, |name| match name {
            "ARVADOS_API_HOST" => Some("h:1".to_owned()),
            "ARVADOS_API_TOKEN" => Some("attempt".to_owned()),
            _ => None,
        })
        .unwrap()
    }

    #[test]
    fn limits_are_what_was_asked_for() {
        let request = record(serde_json::json!({"vcpus": 2, "ram": 1000}));
        let got = limits(&request, &settings(&["--cpuset=0-1", "--pids-limit=64"]));
        assert_eq!(got.vcpus, Some(2.0));
        assert_eq!(got.memory_bytes, Some(1000));
        assert_eq!(got.cpuset.as_deref(), Some("0-1"));
        assert_eq!(got.pids, Some(64));
        let without = settings(&["--enable-memory-limit=false"]);
        assert_eq!(limits(&request, &without).memory_bytes, None);
        assert_eq!(
            limits(&record(serde_json::json!({})), &settings(&[])),
            Limits::default()
        );
    }

    #[test]
    fn network_and_token_only_for_those_who_asked() {
        let mut endpoint = Endpoint::new("h:1", Token::new("own")).unwrap();
        endpoint.insecure = true;
        let plain = record(serde_json::json!({}));
        assert_eq!(network(&plain, &settings(&[])), Network::None);
        let always = settings(&["--container-enable-networking=always"]);
        assert_eq!(network(&plain, &always), Network::Host);
        assert_eq!(environment(&plain, &endpoint), plain.environment);

        let api = record(serde_json::json!({"API": true}));
        assert_eq!(network(&api, &settings(&[])), Network::Host);
        let got = environment(&api, &endpoint);
        let get = |name: &str| got.get(name).map(String::as_str);
        assert_eq!(get("A"), Some("1"));
        assert_eq!(get("ARVADOS_API_HOST"), Some("h:1"));
        assert_eq!(get("ARVADOS_API_TOKEN"), Some("own"));
        assert_eq!(get("ARVADOS_API_HOST_INSECURE"), Some("1"));
        assert_eq!(get("ARVADOS_KEEP_SERVICES"), Some(""));
    }
}

//! Keep services, and the order in which they are tried for a block.

use std::cmp::Reverse;

use md5::{Digest, Md5};
use url::Url;

use crate::ids::UUID_LENGTH;
use crate::locator::{BlockHash, Locator};
use crate::records::KeepService;

/// A Keep service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    uuid: String,
    root: Url,
    read_only: bool,
    gateway: bool,
}

/// The address of a service is not a valid URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Keep service {uuid} has an unusable address {address:?}: {detail}")]
pub struct ServiceError {
    uuid: String,
    address: String,
    detail: String,
}

impl Service {
    /// A service from the list of the API server.
    pub fn of(record: &KeepService) -> Result<Self, ServiceError> {
        let (host, port) = (&record.service_host, record.service_port);
        let scheme = if record.service_ssl_flag {
            "https"
        } else {
            "http"
        };
        let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
        let address = match is_bare_ipv6 {
            true => format!("{scheme}://[{host}]:{port}/"),
            false => format!("{scheme}://{host}:{port}/"),
        };
        Ok(Self {
            read_only: record.read_only,
            gateway: record.service_type.starts_with("gateway"),
            ..Self::at(record.uuid.as_str(), &address)?
        })
    }

    /// A writable service at a URL.
    pub fn at(uuid: &str, address: &str) -> Result<Self, ServiceError> {
        let unusable = |detail: String| ServiceError {
            uuid: uuid.to_owned(),
            address: address.to_owned(),
            detail,
        };
        let mut root = Url::parse(address).map_err(|e| unusable(e.to_string()))?;
        if !matches!(root.scheme(), "http" | "https") {
            return Err(unusable("it must begin with http:// or https://".into()));
        }
        if !root.path().ends_with('/') {
            root.set_path(&format!("{}/", root.path()));
        }
        Ok(Self {
            uuid: uuid.to_owned(),
            root,
            read_only: false,
            gateway: false,
        })
    }

    /// Services from `ARVADOS_KEEP_SERVICES`: URLs separated by white space, instead of the list of
    /// the server.
    pub fn from_urls(text: &str) -> Result<Vec<Self>, ServiceError> {
        let urls = text.split_ascii_whitespace().enumerate();
        // The same uuids as in the SDKs, so that all clients try the services of a block in the
        // same order.
        urls.map(|(n, url)| Self::at(&format!("00000-bi6l4-{n:015}"), url))
            .collect()
    }

    /// Uuid of the service.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Base URL.
    pub fn root(&self) -> &Url {
        &self.root
    }

    /// Base URL without user name and password, for messages.
    pub(super) fn label(&self) -> String {
        self.root.origin().ascii_serialization()
    }

    pub(super) fn is_writable(&self) -> bool {
        !self.read_only && !self.gateway
    }

    /// Rendezvous weight of the service for a block, the same for all clients.
    ///
    /// A uuid of the usual length contributes its tail, any other the whole uuid, as in the Go
    /// client. The Python client always uses the last 15 characters.
    fn weight(&self, hash: &BlockHash) -> [u8; 16] {
        let tail = match self.uuid.len() {
            UUID_LENGTH => &self.uuid.as_bytes()[12..],
            _ => self.uuid.as_bytes(),
        };
        let mut digest = Md5::new();
        digest.update(hash.to_string());
        digest.update(tail);
        digest.finalize().into()
    }
}

/// The services in the order in which a block is stored.
pub(super) fn write_order(services: &[Service], hash: &BlockHash) -> Vec<Service> {
    let mut order: Vec<Service> = services
        .iter()
        .filter(|s| s.is_writable())
        .cloned()
        .collect();
    order.sort_by_cached_key(|s| Reverse(s.weight(hash)));
    order
}

/// The services in the order in which a block is read: a gateway named by a `+K@` hint, then all
/// others.
pub(super) fn read_order(services: &[Service], locator: &Locator) -> Vec<Service> {
    let hinted = |s: &Service| {
        let mut gateways = locator.hints.iter().filter_map(|h| h.strip_prefix("K@"));
        gateways.any(|uuid| uuid == s.uuid)
    };
    let mut order: Vec<Service> = services
        .iter()
        .filter(|s| !s.gateway || hinted(s))
        .cloned()
        .collect();
    order.sort_by_cached_key(|s| (!hinted(s), Reverse(s.weight(&locator.hash))));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service as the server lists it.
    fn listed(uuid: &str, host: &str, ssl: bool, kind: &str) -> Result<Service, ServiceError> {
        let record = serde_json::json!({
            "uuid": uuid, "service_host": host, "service_port": 25107, "service_ssl_flag": ssl,
            "service_type": kind,
        });
        Service::of(&serde_json::from_value(record).unwrap())
    }

    /// Sixteen services with a tail of this many digits.
    fn sixteen(tail: usize) -> Vec<Service> {
        (0..16)
            .map(|n| {
                let uuid = format!("zzzzz-bi6l4-{n:0tail$x}");
                listed(&uuid, "keep.example", false, "disk").unwrap()
            })
            .collect()
    }

    fn last_digits(order: &[Service]) -> String {
        order.iter().map(|s| &s.uuid[s.uuid.len() - 1..]).collect()
    }

    #[test]
    fn services_are_probed_in_the_order_all_clients_agree_on() {
        // of each block, the order with uuids of 27 characters and with uuids of 28
        let rows = [
            ("3eab2d5fc9681074", "fecd789a216b4530"),
            ("097dba52e648f1c3", "642b83df7a5ce019"),
            ("c5b4e023f8a7d691", "aecb082694d517f3"),
            ("9d81c02e76a3bf54", "09edca21bf354867"),
        ];
        for (n, (usual, long)) in rows.into_iter().enumerate() {
            let hash = BlockHash::of(format!("{n:064x}").as_bytes());
            for (tail, expected) in [(15, usual), (16, long)] {
                let services = sixteen(tail);
                assert_eq!(last_digits(&write_order(&services, &hash)), expected);
                let locator = Locator::new(hash, 64);
                assert_eq!(last_digits(&read_order(&services, &locator)), expected);
            }
        }
    }

    #[test]
    fn a_gateway_is_asked_first_where_the_locator_names_it_and_never_elsewhere() {
        let mut services = sixteen(15);
        services.truncate(2);
        let uuid = "zzzzz-bi6l4-gatewayaaaaaaaa";
        let gateway = listed(uuid, "gw", true, "gateway:test").unwrap();
        services.push(gateway.clone());
        let mut locator = Locator::of(b"foo");
        assert_eq!(read_order(&services, &locator).len(), 2);
        assert_eq!(write_order(&services, &locator.hash).len(), 2);
        locator.hints.push("K@zzzzz-bi6l4-gatewayaaaaaaaa".into());
        assert_eq!(read_order(&services, &locator)[0], gateway);
        assert_eq!(read_order(&services, &locator).len(), 3);
    }

    #[test]
    fn read_only_services_are_read_from_only() {
        let only = [Service {
            read_only: true,
            ..Service::at("zzzzz-bi6l4-0", "https://h").unwrap()
        }];
        let locator = Locator::of(b"foo");
        assert!(write_order(&only, &locator.hash).is_empty());
        assert_eq!(read_order(&only, &locator).len(), 1);
    }

    #[test]
    fn addresses_become_urls_or_a_clear_error() {
        let url = |host: &str, ssl| {
            let uuid = "zzzzz-bi6l4-0123456789abcde";
            listed(uuid, host, ssl, "disk").map(|s| s.root.to_string())
        };
        assert_eq!(
            url("keep0.example", true).unwrap(),
            "https://keep0.example:25107/"
        );
        assert_eq!(url("fd00::1", false).unwrap(), "http://[fd00::1]:25107/");
        let error = url("not a host", true).unwrap_err().to_string();
        assert!(error.contains("has an unusable address"), "{error}");
    }

    #[test]
    fn services_can_be_named_by_url() {
        let services = Service::from_urls(" http://a:1\n https://b/keep ").unwrap();
        assert_eq!(services[0].uuid(), "00000-bi6l4-000000000000000");
        assert_eq!(services[1].uuid(), "00000-bi6l4-000000000000001");
        assert_eq!(services[1].root().as_str(), "https://b/keep/");
        assert!(Service::from_urls("ftp://a").is_err());
        assert!(Service::from_urls("").unwrap().is_empty());
    }
}

//! The metrics of `/metrics`.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::db::readers::Readers;
use crate::error::{ApiError, Result};

/// Names and values.
type Labels<const N: usize> = [(&'static str, String); N];

pub struct Metrics {
    registry: Registry,
    requests: Family<Labels<2>, Counter>,
    seconds: Histogram,
    containers: Family<Labels<1>, Gauge>,
    tunnels: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("dispatch_api");
        let requests = Family::<Labels<2>, Counter>::default();
        let seconds = Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let containers = Family::<Labels<1>, Gauge>::default();
        let tunnels = Gauge::default();
        registry.register(
            "requests",
            "Requests answered, by method and status",
            requests.clone(),
        );
        registry.register(
            "request_seconds",
            "Time from a request's head to its answer",
            seconds.clone(),
        );
        registry.register("containers", "Containers by state", containers.clone());
        registry.register(
            "gateway_tunnels",
            "Tunnels open to gateways of containers",
            tunnels.clone(),
        );
        Metrics {
            registry,
            requests,
            seconds,
            containers,
            tunnels,
        }
    }
}

impl Metrics {
    pub fn record_response(&self, method: &http::Method, code: http::StatusCode, took: Duration) {
        // Clients choose the method text, so only known methods become labels.
        let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"];
        let method = known
            .into_iter()
            .find(|known| *known == method.as_str())
            .unwrap_or("other");
        let labels = [
            ("method", method.to_owned()),
            ("code", code.as_str().to_owned()),
        ];
        self.requests.get_or_create(&labels).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub fn render(&self, readers: &Readers, open_tunnels: usize) -> Result<String> {
        readers.read(|connection| {
            let mut counts = connection.prepare_cached(
                "SELECT column1, (SELECT count(*) FROM containers WHERE state = column1) \
                 FROM (VALUES ('Queued'), ('Locked'), ('Running'), ('Complete'), ('Cancelled'))",
            )?;
            let mut rows = counts.query([])?;
            while let Some(row) = rows.next()? {
                let state = [("state", row.get(0)?)];
                self.containers.get_or_create(&state).set(row.get(1)?);
            }
            Ok(())
        })?;
        self.tunnels
            .set(i64::try_from(open_tunnels).unwrap_or(i64::MAX));
        let mut text = String::new();
        encode(&mut text, &self.registry)
            .map_err(|_| ApiError::BadRecord("the metrics cannot be rendered".into()))?;
        Ok(text)
    }
}

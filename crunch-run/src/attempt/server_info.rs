//! Properties of the API server and its Keep services, cached for a few minutes on the node,
//! because containers of a burst would all request them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use arvados_client::keep::Locator;
use arvados_client::records::KeepService;
use arvados_client::{Client, Endpoint, Error};
use host_state::file::{Durability, replace_by};
use host_state::private_dir;
use serde::{Deserialize, Serialize};

/// Maximum age of a cached entry.
const MAX_AGE: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Number of replicas of each block.
    pub replicas: u32,
    pub services: Vec<KeepService>,
    /// Whether a container gateway may choose its own secret.
    pub takes_any_gateway_secret: bool,
    /// Whether a permanent failure of a container ends its requests.
    pub ends_permanent_failures: bool,
    /// Whether an output without the entries that cannot be saved is better than none.
    pub takes_partial_outputs: bool,
}

impl ServerInfo {
    /// Returns the cached properties, or fetches them.
    pub async fn of(client: &Client, cache: Option<&Path>) -> Result<Self, Error> {
        let endpoint = client.endpoint();
        let file = cache.map(|cache| file(cache, endpoint));
        if let Some(facts) = file.as_deref().and_then(read) {
            return Ok(facts);
        }
        let services = async {
            match endpoint.keep_services.is_empty() {
                true => client.keep_services().await,
                false => Ok(Vec::new()),
            }
        };
        let (services, discovery) = tokio::join!(services, client.discovery());
        let discovery = discovery?;
        let facts = Self {
            replicas: discovery.keep_options().replicas,
            services: services?,
            takes_any_gateway_secret: discovery.takes_any_gateway_secret(),
            ends_permanent_failures: discovery.ends_permanent_failures(),
            takes_partial_outputs: discovery.takes_partial_outputs(),
        };
        // Services named by the environment are not the server's list.
        if let Some(file) = file.filter(|_| endpoint.keep_services.is_empty())
            && let Err(error) = facts.write(&file)
        {
            tracing::debug!(%error, "could not cache the properties of the server");
        }
        Ok(facts)
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        private_dir::create(file.parent().unwrap_or(file))?;
        let partial = file.with_extension(format!("{:08x}", fastrand::u32(..)));
        let text = serde_json::to_vec(self)?;
        replace_by(&partial, file, &text, Durability::Process)
    }
}

/// Removes the cached entry after a failed attempt.
pub fn forget(cache: &Path, endpoint: &Endpoint) {
    let _ = fs::remove_file(file(cache, endpoint));
}

/// Another server at the same address has another certificate.
fn file(cache: &Path, endpoint: &Endpoint) -> PathBuf {
    let safe = |c: char| match c.is_ascii_alphanumeric() || ".-".contains(c) {
        true => c,
        false => '_',
    };
    let mut name: String = endpoint.host.chars().map(safe).collect();
    let certificates = endpoint.ca_file.as_ref().map(fs::read);
    if let Some(Ok(certificates)) = certificates {
        name = format!("{name}.{}", Locator::of(&certificates).hash);
    }
    cache.join("servers").join(format!("{name}.json"))
}

/// Tokens are sent to the cached services, so only a file that this user wrote and nobody else can
/// write is used.
fn read(file: &Path) -> Option<ServerInfo> {
    let open = private_dir::open(file).ok()??;
    let modified = open.metadata().ok()?.modified().ok()?;
    // A time in the future is invalid.
    let age = SystemTime::now().duration_since(modified).ok()?;
    match age < MAX_AGE {
        true => serde_json::from_reader(open).ok(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use arvados_client::Token;

    use super::*;

    #[test]
    fn only_fresh_notes_that_nobody_else_could_write_are_believed() {
        let cache = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::new("zzzzz.example:443", Token::new("t")).unwrap();
        let file = file(cache.path(), &endpoint);
        assert!(file.ends_with("servers/zzzzz.example_443.json"));
        let facts = ServerInfo {
            replicas: 2,
            services: vec![],
            takes_any_gateway_secret: false,
            ends_permanent_failures: false,
            takes_partial_outputs: false,
        };
        facts.write(&file).unwrap();
        assert_eq!(read(&file), Some(facts.clone()));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(read(&file), None);
        facts.write(&file).unwrap();
        let open = fs::File::options().write(true).open(&file).unwrap();
        open.set_modified(SystemTime::now() - MAX_AGE).unwrap();
        assert_eq!(read(&file), None);
        facts.write(&file).unwrap();
        forget(cache.path(), &endpoint);
        assert_eq!(read(&file), None);
    }

    #[test]
    fn another_server_at_the_same_address_is_another() {
        let cache = tempfile::tempdir().unwrap();
        let files = ["one", "other", "other"].map(|certificate| {
            let path = cache.path().join("certificate");
            fs::write(&path, certificate).unwrap();
            let mut endpoint = Endpoint::new("127.0.0.1:8443", Token::new("t")).unwrap();
            endpoint.ca_file = Some(path);
            file(cache.path(), &endpoint)
        });
        assert_ne!(files[0], files[1]);
        assert_eq!(files[1], files[2]);
    }
}

//! The limit of open files: raised as far as the administrator permits, and respected.

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

use crate::limits::{MAX_ANONYMOUS_WEBSOCKETS, MAX_WEBSOCKETS};
use crate::options::Options;

/// File descriptors for the database, blocks, logs and connections that are just being accepted.
const OTHER_FILES: usize = 512;

/// Raises the soft limit, and returns the number of connections for which it suffices.
pub fn limit_connections(options: &Options) -> usize {
    let others =
        options.max_gateway_tunnels + MAX_WEBSOCKETS + MAX_ANONYMOUS_WEBSOCKETS + OTHER_FILES;
    let wanted = (options.max_connections + others) as u64;
    let mut limits = getrlimit(Resource::Nofile);
    if limits.current.is_some_and(|current| current < wanted) {
        let raised = limits.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        limits.current = Some(raised);
        if let Err(problem) = setrlimit(Resource::Nofile, limits) {
            warn!(error = %problem, "cannot raise the limit of open files");
        }
    }
    let available = getrlimit(Resource::Nofile).current.unwrap_or(wanted);
    if available >= wanted {
        return options.max_connections;
    }
    // Few clients use a websocket or a tunnel if few files are permitted.
    let connections = usize::try_from(available / 2).unwrap_or(options.max_connections);
    let connections = connections.clamp(2, options.max_connections);
    warn!(
        limit = available,
        wanted,
        connections,
        "the limit of open files is too low for --max-connections, websockets and tunnels; \
         raise it (LimitNOFILE= of the service, or ulimit -Hn)"
    );
    connections
}

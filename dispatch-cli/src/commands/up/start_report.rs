//! What `dispatch up` says at its start: the jobs from before, and what containers can have.

use std::net::SocketAddr;
use std::time::Duration;

use arvados_client::Client;
use tokio::time::sleep;

use super::{Ready, Up};
use crate::commands::info;
use crate::error::CliError;
use crate::local_status::{self, StatusReply};
use crate::printer::eprint_note;
use crate::state_dir::StateDir;
use crate::text::plural;
use units::format_duration;

/// Maximum number of queries for the capacity, which is not known at the first moment.
const MAX_CAPACITY_QUERIES: u32 = 40;
const CAPACITY_QUERY_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of the query for jobs from before.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Prints how many jobs have not ended, before their dispatcher runs.
pub async fn print_found(state: &StateDir, ready: &Ready) {
    let counts = async {
        let (host, certificate) = (&ready.host, &ready.certificate);
        let endpoint = state.endpoint_with(host, certificate, &ready.tokens.root)?;
        let client = Client::new(endpoint)?;
        let count = |name| info::number_of(&client, name);
        let (running, locked) = (count("Running").await?, count("Locked").await?);
        Ok::<_, CliError>((running + locked, count("Queued").await?))
    };
    match tokio::time::timeout(COUNT_TIMEOUT, counts).await {
        Ok(Ok((0, 0))) => {}
        Ok(Ok((begun, waiting))) => eprint_note(&format!(
            "dispatch: {} from before had begun, and {waiting} waited; see them with: dispatch --admin list",
            plural(begun, "job")
        )),
        Ok(Err(error)) => eprint_note(&format!("dispatch: jobs from before: {error}")),
        Err(_) => eprint_note(&format!(
            "dispatch: jobs from before: the server does not answer within {}",
            format_duration(COUNT_TIMEOUT)
        )),
    }
}

/// Says that the environment names another server, which other commands of this shell then use.
pub fn print_other_server(own: &str) {
    let named = std::env::var("ARVADOS_API_HOST").unwrap_or_default();
    if !named.is_empty() && named != own {
        eprint_note(&format!(
            "dispatch: ARVADOS_API_HOST is {named} in this environment: other commands go there and \
             not to this server, until it is unset or set as below"
        ));
    }
}

/// Prints what containers can have together, and what flags ask for more.
pub async fn print_capacity(state: &StateDir, args: &Up) -> Result<(), CliError> {
    let client = Client::new(state.endpoint()?)?;
    for _ in 0..MAX_CAPACITY_QUERIES {
        // Without a reply, `dispatch info` says why.
        let StatusReply::Reply(status) = local_status::fetch_from(&client, state).await else {
            break;
        };
        if let Some(capacity) = status.capacity {
            let amounts = capacity.description();
            eprint_note(&format!("dispatch: containers can have {amounts}"));
            for (flag, wanted, has) in [
                ("--cpus", args.cpus.map(u64::from), capacity.cpus),
                ("--memory", args.memory, capacity.ram),
            ] {
                if wanted.is_some_and(|wanted| wanted > has) {
                    eprint_note(&format!(
                        "dispatch: {flag} is more than this machine has, and limits nothing"
                    ));
                }
            }
            break;
        }
        // The dispatcher has not looked at the machine yet.
        sleep(CAPACITY_QUERY_INTERVAL).await;
    }
    Ok(())
}

/// Prints where other machines reach a server that listens on all addresses: its record has the
/// address for this machine.
pub fn print_address_for_others(listen: Option<SocketAddr>, host: &str) {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    if let Some(address) = address_for_others(listen, host, &name) {
        eprint_note(&format!(
            "dispatch: other machines reach the server at {address}; for another address, name it with --listen"
        ));
    }
}

/// The name of this machine, which the certificate has, and the port.
fn address_for_others(listen: Option<SocketAddr>, host: &str, name: &str) -> Option<String> {
    let listens_on_all = listen.is_some_and(|listen| listen.ip().is_unspecified());
    let (_, port) = host.rsplit_once(':')?;
    listens_on_all.then(|| format!("{name}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_all_addresses_has_the_name_of_its_machine() {
        for (listen, expected) in [
            (Some("0.0.0.0:0"), Some("desk:4242")),
            (Some("[::]:0"), Some("desk:4242")),
            (Some("127.0.0.1:0"), None),
            (Some("10.0.0.7:4242"), None),
            (None, None),
        ] {
            let listen = listen.map(|listen| listen.parse().unwrap());
            let address = address_for_others(listen, "127.0.0.1:4242", "desk");
            assert_eq!(address.as_deref(), expected, "{listen:?}");
        }
    }
}

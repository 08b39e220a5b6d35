//! The proxy of a connection, by the variables that other programs read: https_proxy, http_proxy,
//! all_proxy and no_proxy, in either case. Connections to this machine never go through a proxy: a
//! proxy could not reach it.

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{ClientBuilder, NoProxy, Proxy};

/// Hosts that are this machine, in the form of no_proxy.
const LOOPBACK: &str = "localhost,127.0.0.0/8,::1";

/// The proxies of the environment.
pub struct Proxies {
    https: Option<String>,
    http: Option<String>,
    all: Option<String>,
    /// Hosts without a proxy, as a list with commas.
    direct: String,
}

impl Proxies {
    /// `direct_host` gets no proxy, whatever the variables say.
    pub fn from_env(direct_host: Option<&str>) -> Self {
        Self::from_lookup(|name| std::env::var(name).ok(), direct_host)
    }

    fn from_lookup(get: impl Fn(&str) -> Option<String>, direct_host: Option<&str>) -> Self {
        let either = |name: &str| {
            let value = get(name).or_else(|| get(&name.to_uppercase()));
            value.filter(|value| !value.trim().is_empty())
        };
        let mut direct = LOOPBACK.to_owned();
        let excepted = either("no_proxy");
        for more in excepted.as_deref().into_iter().chain(direct_host) {
            // An IPv6 address is without brackets here.
            direct = format!("{direct},{}", more.trim_matches(['[', ']']));
        }
        Self {
            https: either("https_proxy"),
            http: either("http_proxy"),
            all: either("all_proxy"),
            direct,
        }
    }

    /// A client with these proxies and no others. Values that are no addresses are passed over, as
    /// other programs do.
    pub fn apply(&self, mut client: ClientBuilder) -> ClientBuilder {
        client = client.no_proxy();
        let proxies = [
            self.https.as_ref().map(Proxy::https),
            self.http.as_ref().map(Proxy::http),
            self.all.as_ref().map(Proxy::all),
        ];
        for proxy in proxies.into_iter().flatten().flatten() {
            client = client.proxy(proxy.no_proxy(NoProxy::from_string(&self.direct)));
        }
        client
    }

    /// Address of the proxy for `https://HOST`, without user and password.
    pub fn proxy_for(&self, host: &str) -> Option<String> {
        let builder = Matcher::builder()
            .all(self.all.clone().unwrap_or_default())
            .https(self.https.clone().unwrap_or_default())
            .no(self.direct.as_str());
        let address = format!("https://{host}/").parse().ok()?;
        let proxy = builder.build().intercept(&address)?;
        Some(proxy.uri().to_string().trim_end_matches('/').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy_of(host: &str, variables: &[(&str, &str)], direct: Option<&str>) -> Option<String> {
        let get = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Proxies::from_lookup(get, direct).proxy_for(host)
    }

    #[test]
    fn this_machine_and_direct_hosts_have_no_proxy() {
        let secret = "http://ann:sesame@proxy:3128";
        for variable in ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
            let set = [(variable, secret)];
            let proxy = proxy_of("api.example:443", &set, None);
            assert_eq!(proxy.as_deref(), Some("http://proxy:3128"), "{variable}");
            for host in [
                "127.0.0.1:8443",
                "127.9.9.9",
                "localhost:1",
                "[::1]:8443",
                "own.host:8443",
            ] {
                assert_eq!(proxy_of(host, &set, Some("own.host")), None, "{host}");
            }
        }
        let excepted = [("https_proxy", secret), ("NO_PROXY", ".example,other")];
        assert_eq!(proxy_of("api.example:443", &excepted, None), None);
        assert!(proxy_of("api.elsewhere", &excepted, None).is_some());
        assert_eq!(
            proxy_of("api.example", &[("http_proxy", secret)], None),
            None
        );
        assert_eq!(proxy_of("api.example", &[("https_proxy", "")], None), None);
        assert_eq!(proxy_of("api.example", &[], None), None);
    }
}

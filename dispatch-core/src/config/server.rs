//! Selects the API server and its token. Input: configuration file, token file and environment;
//! output: the value of each `ARVADOS_…` variable. No I/O.

use arvados_client::Token;

use super::Config;

/// The value of one of the `ARVADOS_…` variables.
///
/// If the file names a server, its address and its TLS setting come from the file. The token then
/// comes from the token file, the configuration file or the environment, in this order.
///
/// If the file names no server, all values but a token file's come from the environment. So the
/// token of the configuration file is sent only to the server that the file names.
pub fn variable(
    key: &str,
    config: Option<&Config>,
    token_file: Option<&Token>,
    environment: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let cluster = config.map(|config| &config.cluster);
    let named = cluster.and_then(|c| {
        let url = c.services.controller.external_url.as_deref()?;
        Some((c, url)).filter(|(_, url)| !url.is_empty())
    });
    match (key, named) {
        ("ARVADOS_API_TOKEN", _) if token_file.is_some() => {
            token_file.map(|token| token.expose().to_owned())
        }
        ("ARVADOS_API_HOST", Some((_, url))) => {
            let host = url.strip_prefix("https://").unwrap_or(url);
            Some(host.trim_end_matches('/').to_owned())
        }
        ("ARVADOS_API_HOST_INSECURE", Some((cluster, _))) => {
            (cluster.tls.insecure == Some(true)).then(|| "1".to_owned())
        }
        ("ARVADOS_API_TOKEN", Some((cluster, _))) => match &cluster.system_root_token {
            Some(token) => Some(token.expose().to_owned()),
            None => environment(key),
        },
        _ => environment(key),
    }
    .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "ARVADOS_API_HOST";
    const TOKEN: &str = "ARVADOS_API_TOKEN";
    const INSECURE: &str = "ARVADOS_API_HOST_INSECURE";

    #[test]
    fn a_token_goes_only_to_the_server_it_stands_beside() {
        let full = "{Clusters: {zzzzz: {SystemRootToken: root, TLS: {Insecure: true}, Services: {Controller: {ExternalURL: 'https://file:8443/'}}}}}";
        let no_token =
            "{Clusters: {zzzzz: {Services: {Controller: {ExternalURL: 'https://file/'}}}}}";
        let no_host = "{Clusters: {zzzzz: {SystemRootToken: root, TLS: {Insecure: true}}}}";
        let environment = |key: &str| Some(format!("env {key}"));
        let given = Token::new("given");
        #[rustfmt::skip]
        let rows = [
            (None, HOST, None, Some("env ARVADOS_API_HOST")),
            (None, TOKEN, Some(&given), Some("given")),
            (None, TOKEN, None, Some("env ARVADOS_API_TOKEN")),
            (Some(full), HOST, None, Some("file:8443")),
            (Some(full), TOKEN, None, Some("root")),
            (Some(full), TOKEN, Some(&given), Some("given")),
            (Some(full), INSECURE, None, Some("1")),
            (Some(full), "SSL_CERT_FILE", None, Some("env SSL_CERT_FILE")),
            (Some(no_token), TOKEN, None, Some("env ARVADOS_API_TOKEN")),
            (Some(no_token), INSECURE, None, None),
            (Some(no_host), HOST, None, Some("env ARVADOS_API_HOST")),
            (Some(no_host), TOKEN, None, Some("env ARVADOS_API_TOKEN")),
            (Some(no_host), INSECURE, None, Some("env ARVADOS_API_HOST_INSECURE")),
        ];
        for (n, (text, key, file, expected)) in rows.into_iter().enumerate() {
            let config = text.map(|text| Config::of(text, &[]).unwrap());
            let got = variable(key, config.as_ref(), file, environment);
            assert_eq!(got.as_deref(), expected, "row {n}");
        }
        assert_eq!(variable(HOST, None, None, |_| Some(String::new())), None);
    }
}

//! Dispatch, attempt and container tokens can be read only where they belong.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use arvados_client::filter::Query;
use arvados_client::records::{Authorization, ContainerState};
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::{Stack, client, wait_for};

/// Secrets by their names.
pub type Secrets = BTreeMap<String, String>;

/// The secret part of a v2 token; all of another one.
pub fn secret(token: &str) -> String {
    token.trim().rsplit('/').next().unwrap().to_owned()
}

/// Adds the secrets of a job's token file: the attempt token, which is returned, and the gateway
/// secret.
pub fn add_credentials(secrets: &mut Secrets, file: &Path) -> String {
    let content = fs::read_to_string(file).unwrap();
    let (token, rest) = content.split_once('\n').unwrap_or((&content, ""));
    secrets.insert("attempt token".to_owned(), secret(token));
    if let Some(gateway) = rest.trim().strip_prefix("GatewayAuthSecret=") {
        secrets.insert("gateway secret".to_owned(), gateway.to_owned());
    }
    token.trim().to_owned()
}

pub fn found_in(secrets: &Secrets, text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    secrets
        .iter()
        .find(|(_, secret)| text.contains(secret.as_str()))
        .map(|(what, _)| what.clone())
}

pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

/// (pid, uid, command line, environment) of every process.
pub fn processes() -> Vec<(String, u32, Vec<u8>, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<u32>().is_ok()
            && let Ok(meta) = entry.metadata()
        {
            let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
            found.push((name, meta.uid(), read("cmdline"), read("environ")));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_where_others_can_read_it() {
    let stack = Stack::up().await;
    // The container asks for API access, so its environment has the container token. The script
    // prints the token's length.
    let script = "echo ${#ARVADOS_API_TOKEN}; while ! [ -e /out/stop ]; do sleep 0.1; done";
    let more = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true}});
    let (request, container) = stack.submit("secretive", script, more).await;
    stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.state == ContainerState::Running
        })
        .await;

    let mut secrets = Secrets::new();
    for who in ["dispatch", "root", "user"] {
        let token = fs::read_to_string(stack.ready["tokens"][who].as_str().unwrap()).unwrap();
        secrets.insert(format!("{who} token"), secret(&token));
    }
    let token_file = stack
        .dispatcher_state_dir()
        .join(container.as_str())
        .join("token");
    let attempt = fs::read_to_string(&token_file).unwrap();
    secrets.insert("attempt token".into(), secret(&attempt));
    let record = stack.container(&container).await;
    let root = client(&stack.ready, "root");
    let known = root
        .page::<Authorization>("api_client_authorizations", &Query::new().limit(100))
        .await
        .unwrap();
    assert!(!known.items.is_empty());
    let as_attempt = root.with_token(arvados_client::Token::new(attempt.trim()));
    let container_token = as_attempt.container_auth(&container).await.unwrap();
    let container_token = container_token.token().unwrap().expose().to_owned();
    secrets.insert("container token".into(), secret(&container_token));
    assert_eq!(secrets.len(), 5);
    assert!(
        secrets.values().all(|s| s.len() > 20),
        "a secret is too short to look for"
    );

    // The record is Running before the process executes its command.
    let token = secrets["container token"].as_bytes();
    wait_for("the container to have its token", STEP_TIMEOUT, || {
        let has = |environment: &[u8]| environment.windows(token.len()).any(|part| part == token);
        let mut all = processes().into_iter();
        all.find(|(_, _, _, environment)| has(environment))
    });

    // Processes: no token in argv; in an environment only the container token, and only inside the
    // container.
    let mut inside = 0;
    for (pid, _, command, environment) in processes() {
        assert_eq!(found_in(&secrets, &command), None, "argv of {pid}");
        match found_in(&secrets, &environment).as_deref() {
            None => {}
            Some("container token") => inside += 1,
            Some(what) => panic!("{what} is in the environment of {pid}"),
        }
    }
    assert!(
        inside >= 1,
        "the container does not have its token: the search finds nothing"
    );

    // Files: the attempt token in one file of mode 0600; none in logs, notes or scratch space.
    let state_tokens = stack.dir.path().join("state");
    for file in files(stack.dir.path()) {
        if file == token_file || file.starts_with(&state_tokens) {
            continue;
        }
        let content = fs::read(&file).unwrap_or_default();
        assert_eq!(found_in(&secrets, &content), None, "{}", file.display());
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&token_file), 0o600);
    assert_eq!(mode(token_file.parent().unwrap()), 0o700);

    // The record, and everything that was saved with it.
    let text = serde_json::to_vec(&record).unwrap();
    assert_eq!(found_in(&secrets, &text), None, "container record");
    stack
        .user
        .update_container_request(&request, json!({"priority": 0}))
        .await
        .unwrap();
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled, "{record:?}");
    let saved = tempfile::tempdir().unwrap();
    let saved_log = stack
        .user
        .container_request(&request)
        .await
        .unwrap()
        .log_uuid;
    let log = saved_log.unwrap().to_string();
    let got = std::process::Command::new(suite_tests::program::binary("dispatch"))
        .args(["get", &log])
        .arg(saved.path().join("log"))
        .envs(suite_tests::stack::environment(&stack.ready))
        .output()
        .unwrap();
    assert!(
        got.status.success(),
        "{}",
        String::from_utf8_lossy(&got.stderr)
    );
    let logs = files(saved.path());
    assert!(
        logs.iter().any(|f| f.ends_with("crunch-run.txt")),
        "{logs:?}"
    );
    for file in logs {
        assert_eq!(
            found_in(&secrets, &fs::read(&file).unwrap()),
            None,
            "{}",
            file.display()
        );
    }
    // The attempt token is invalid after the container has ended.
    assert!(
        as_attempt
            .container(&container)
            .await
            .unwrap_err()
            .is_denied()
    );
}

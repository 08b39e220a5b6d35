//! Upstream's tool for statistics, crunchstat-summary, reads the log of a real run.

use std::process::{Command, Stdio};

use arvados_client::ContainerUuid;
use serde_json::json;

use suite_tests::stack::{Stack, complete, environment};

/// The tool's stdout and stderr.
fn summary(stack: &Stack, container: &ContainerUuid, format: &str) -> (String, String) {
    let output = Command::new(suite_tests::python_clients().join("crunchstat-summary"))
        .args(["--container", container.as_str(), "--format", format])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", stack.dir.path())
        .envs(environment(&stack.ready))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    (String::from_utf8(output.stdout).unwrap(), stderr)
}

#[tokio::test]
async fn crunchstat_summary_reads_the_log_and_draws_it() {
    let stack = Stack::up().await;
    let script = "dd if=/dev/zero of=/out/x bs=1000 count=500; for i in 1 2 3; do sleep 1; done";
    let (_, container) = stack.submit("measured", script, json!({})).await;
    complete(&stack.end(&container, suite_tests::STEP_TIMEOUT).await);

    let (table, said) = summary(&stack, &container, "text");
    let cell = |category: &str, metric: &str, column: usize| {
        let row = table.lines().find(|line| {
            let mut cells = line.split('\t');
            cells.next() == Some(category) && cells.next() == Some(metric)
        });
        let row = row.unwrap_or_else(|| panic!("{category} {metric} in {table}\n{said}"));
        let cell = row.split('\t').nth(column).unwrap();
        cell.parse::<f64>()
            .unwrap_or_else(|_| panic!("{cell:?} in {row}"))
    };
    let (highest, rate) = (2, 3);
    assert!(cell("cpu", "cpus", highest) >= 1.0);
    assert!(cell("cpu", "user+sys", rate) >= 0.0);
    assert!(cell("mem", "rss", highest) > 0.0);
    assert!(cell("mem", "pgmajfault", highest) >= 0.0);
    assert!(cell("statfs", "total", highest) > 0.0);
    assert!(cell("time", "elapsed", highest) >= 3.0);
    assert!(table.contains("# Requested RAM: 32"), "{table}");
    // The tool has misread no line.
    for complaint in ["log contains message", "Error parsing", "BUG?"] {
        assert!(!said.contains(complaint), "{said}");
    }

    let (page, _) = summary(&stack, &container, "html");
    assert!(
        page.starts_with("<!doctype html>"),
        "{}",
        &page[..200.min(page.len())]
    );
    for drawn in ["Dygraph", "cpu", "mem", "Max memory used", "measured"] {
        assert!(page.contains(drawn), "{drawn:?} is not drawn");
    }
}

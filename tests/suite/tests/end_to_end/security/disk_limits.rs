//! Containers that write more than their scratch space.

use arvados_client::records::ContainerState;
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::Stack;

#[tokio::test]
async fn neither_the_root_nor_a_sparse_file_escapes_the_limits() {
    let stack = Stack::up().await;
    for (name, script, words) in [
        (
            "root",
            "dd if=/dev/zero of=/big bs=1M count=400 && sleep 600",
            "its own root included",
        ),
        (
            "sparse",
            "dd if=/dev/zero of=/out/holes bs=1 count=1 seek=1099511627775",
            "holes is sparse",
        ),
    ] {
        let (_, container) = stack.submit(name, script, json!({})).await;
        let record = stack.end(&container, STEP_TIMEOUT).await;
        assert_eq!(record.state, ContainerState::Cancelled, "{name}");
        let error = record.runtime_status.error.unwrap_or_default();
        assert!(error.contains(words), "{name}: {error}");
    }
}

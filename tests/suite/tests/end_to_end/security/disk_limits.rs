//! Containers that write more than their scratch space.

use arvados_client::records::ContainerState;
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::Stack;

#[tokio::test]
async fn neither_the_root_nor_a_sparse_file_escapes_the_limits() {
    let stack = Stack::up().await;
    let script = "dd if=/dev/zero of=/big bs=1M count=400 && sleep 600";
    let (_, container) = stack.submit("root", script, json!({})).await;
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.contains("its own root included"), "{error}");

    let script = "echo x >/out/f; dd if=/dev/zero of=/out/holes bs=1 count=1 seek=1099511627775";
    let (_, container) = stack.submit("sparse", script, json!({})).await;
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Complete, "{record:?}");
    let told = record.runtime_status.warning_detail.unwrap_or_default();
    assert!(told.contains("holes is sparse"), "{told}");
    let output = stack.user.collection(record.output.unwrap().as_str()).await;
    assert_eq!(output.unwrap().file_size_total, 2);
}

//! Listings in pages are complete while the listed containers change.

use std::collections::BTreeSet;

use arvados_client::filter::Query;
use arvados_client::records::Container;

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn keyset_pages_find_every_container_once_with_only_the_asked_columns() {
    let fixture = Fixture::new().await;
    let mut made = BTreeSet::new();
    for n in 0..7 {
        made.insert(fixture.request(&format!("n{n}")).await.1);
    }
    let query = Query::new()
        .filter("state", "=", "Queued")
        .filter("priority", ">", 0)
        .select(&["uuid", "state", "priority"]);
    let found: Vec<Container> = fixture
        .dispatch
        .all("containers", query, |c: &Container| c.uuid.as_str())
        .await
        .unwrap();
    assert_eq!(
        found
            .iter()
            .map(|c| c.uuid.clone())
            .collect::<BTreeSet<_>>(),
        made
    );
    assert_eq!(found.len(), made.len());
    assert!(
        found
            .iter()
            .all(|c| c.priority > 1 << 50 && c.command.is_empty())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_too_long_for_a_url_still_arrives() {
    let fixture = Fixture::new().await;
    let (_, uuid) = fixture.request("one").await;
    let mut uuids: Vec<String> = (0..900).map(|n| format!("zzzzz-dz642-{n:015}")).collect();
    uuids.push(uuid.to_string());
    let query = Query::new().filter("uuid", "in", &uuids);
    let found = fixture
        .dispatch
        .page::<Container>("containers", &query)
        .await
        .unwrap();
    assert_eq!(found.items.len(), 1);
}

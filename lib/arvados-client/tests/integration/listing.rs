//! Listings of a server that does not answer the query: each is an error, never a part.

use arvados_client::error::ListFault;
use arvados_client::filter::Query;
use arvados_client::records::Authorization;
use arvados_client::{Client, Error};
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, ResponseTemplate};

use crate::https::{client, server};

const TOKENS: &str = "api_client_authorizations";

/// A client whose server has this answer to everything, as one that ignores filters, or a cache.
async fn answered(page: Value) -> Client {
    let (server, endpoint) = server().await;
    let answer = ResponseTemplate::new(200).set_body_json(page);
    Mock::given(any()).respond_with(answer).mount(&server).await;
    // The server ends with its variable.
    Box::leak(Box::new(server));
    client(endpoint)
}

fn fault<T>(answer: Result<T, Error>) -> ListFault {
    match answer {
        Err(Error::IncompleteList { fault, .. }) => fault,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the listing counts as complete"),
    }
}

#[tokio::test]
async fn a_server_that_ignores_filters_or_repeats_pages_lists_nothing() {
    let items = [1, 2].map(|n| json!({"uuid": format!("zzzzz-gj3su-{n:015}"), "scopes": ["all"]}));
    let client = answered(json!({"items": items})).await;
    let all = |query| client.all(TOKENS, query, |token: &Authorization| token.uuid.as_str());
    for query in [
        // The second page is the first one.
        Query::new(),
        Query::new().filter("uuid", "in", ["zzzzz-gj3su-000000000000001"]),
        Query::new().filter("uuid", "=", "zzzzz-gj3su-000000000000003"),
    ] {
        assert!(matches!(
            fault(all(query).await),
            ListFault::FilterIgnored(_)
        ));
    }
    // A list that is paged by numbers of records has no filter.
    assert_eq!(fault(client.tokens().await), ListFault::PageRepeated);
}

#[tokio::test]
async fn a_page_of_records_without_order_ends_a_list_with_an_error() {
    // The attribute by which pages are compared is not in the answer.
    let client = answered(json!({"items": [{"name": "b"}, {"name": "a"}]})).await;
    let names = client.all("x", Query::new(), |record: &Value| {
        record["name"].as_str().unwrap()
    });
    assert_eq!(fault(names.await), ListFault::PageRepeated);
}

#[tokio::test]
async fn an_empty_page_is_the_end() {
    let client = answered(json!({"items": []})).await;
    assert!(client.tokens().await.unwrap().is_empty());
    let all = client.all("x", Query::new(), |record: &Value| {
        record["uuid"].as_str().unwrap()
    });
    assert!(all.await.unwrap().is_empty());
}

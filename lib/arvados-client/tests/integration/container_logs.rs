//! Reads of the live log of a container, over the log route of the server.

use crate::https::{client, server};
use arvados_client::api::LogRange;
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid};
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

const ROOT: &str =
    "/arvados/v1/container_requests/zzzzz-xvhdp-000000000000000/log/zzzzz-dz642-000000000000000/";
const CONTENT: &[u8] = b"hello world\n";

fn uuids() -> (ContainerRequestUuid, ContainerUuid) {
    (
        "zzzzz-xvhdp-000000000000000".parse().unwrap(),
        "zzzzz-dz642-000000000000000".parse().unwrap(),
    )
}

/// Result of a read: the bytes, or why there are none.
async fn read(client: &Client, file: &str, offset: u64) -> Result<Vec<u8>, String> {
    let (request, container) = uuids();
    let range = client.container_log(&request, &container, file, offset);
    match range.await.unwrap() {
        LogRange::Data(mut stream) => {
            let mut got = Vec::new();
            while let Some(chunk) = stream.next_chunk().await.unwrap() {
                assert!(!chunk.is_empty());
                got.extend_from_slice(&chunk);
            }
            Ok(got)
        }
        other => Err(format!("{other:?}")),
    }
}

/// A server with ranges, like the Go file server.
fn ranged(request: &Request) -> ResponseTemplate {
    let range = request.headers["Range"].to_str().unwrap();
    let begin = range
        .strip_prefix("bytes=")
        .and_then(|r| r.strip_suffix('-'));
    let begin: usize = begin.unwrap().parse().unwrap();
    if begin >= CONTENT.len() {
        return ResponseTemplate::new(416)
            .insert_header("Content-Range", format!("bytes */{}", CONTENT.len()));
    }
    let (last, size) = (CONTENT.len() - 1, CONTENT.len());
    ResponseTemplate::new(206)
        .insert_header("Content-Range", format!("bytes {begin}-{last}/{size}"))
        .set_body_bytes(&CONTENT[begin..])
}

/// Expected result of a read: bytes, or why there are none.
type Expected = Result<&'static [u8], &'static str>;

async fn answers(server: &MockServer, file: &str, response: ResponseTemplate) {
    Mock::given(path(format!("{ROOT}{file}")))
        .respond_with(response)
        .mount(server)
        .await;
}

#[tokio::test]
async fn a_file_is_read_from_where_the_last_reading_ended() {
    let (server, endpoint) = server().await;
    Mock::given(method("GET"))
        .and(path(format!("{ROOT}stdout.txt")))
        .and(header(
            "Authorization",
            format!("Bearer {}", crate::https::TOKEN),
        ))
        .respond_with(ranged)
        .mount(&server)
        .await;
    let client = client(endpoint);
    for offset in [0, 6, 11] {
        let got = read(&client, "stdout.txt", offset).await.unwrap();
        assert_eq!(got, &CONTENT[usize::try_from(offset).unwrap()..]);
    }
    for offset in [12, 99] {
        assert_eq!(
            read(&client, "stdout.txt", offset).await.unwrap_err(),
            "NothingNew"
        );
    }
}

#[tokio::test]
async fn a_server_without_ranges_gives_the_same_bytes() {
    let (server, endpoint) = server().await;
    let whole = ResponseTemplate::new(200).set_body_bytes(CONTENT);
    answers(&server, "whole.txt", whole).await;
    answers(&server, "empty.txt", ResponseTemplate::new(200)).await;
    let early = ResponseTemplate::new(206)
        .insert_header("Content-Range", "bytes 2-11/12")
        .set_body_bytes(&CONTENT[2..]);
    answers(&server, "early.txt", early).await;
    let late = ResponseTemplate::new(206)
        .insert_header("Content-Range", "bytes 9-11/12")
        .set_body_bytes(&CONTENT[9..]);
    answers(&server, "late.txt", late).await;
    let placeless = ResponseTemplate::new(206).set_body_bytes(&CONTENT[6..]);
    answers(&server, "placeless.txt", placeless).await;
    let client = client(endpoint);
    // file, offset, result
    let rows: [(&str, u64, Expected); 6] = [
        ("whole.txt", 6, Ok(b"world\n")),
        ("whole.txt", 99, Ok(b"")),
        ("empty.txt", 0, Ok(b"")),
        ("early.txt", 6, Ok(b"world\n")),
        ("late.txt", 6, Err("Unavailable")),
        ("placeless.txt", 6, Err("Unavailable")),
    ];
    for (file, offset, expected) in rows {
        let got = read(&client, file, offset).await;
        let got = got.as_deref().map_err(String::as_str);
        assert_eq!(got, expected, "{file} {offset}");
    }
}

#[tokio::test]
async fn refusals_of_the_route_are_no_errors_and_one_of_the_token_is() {
    let (server, endpoint) = server().await;
    let client = client(endpoint);
    for (status, expected) in [
        (404, "NoFile"),
        (405, "NoFile"),
        (502, "Unavailable"),
        (503, "Unavailable"),
    ] {
        answers(
            &server,
            &format!("{status}.txt"),
            ResponseTemplate::new(status),
        )
        .await;
        let got = read(&client, &format!("{status}.txt"), 0).await;
        assert_eq!(got.unwrap_err(), expected, "{status}");
    }
    answers(&server, "401.txt", ResponseTemplate::new(401)).await;
    let (request, container) = uuids();
    let refused = client
        .container_log(&request, &container, "401.txt", 0)
        .await;
    assert!(refused.unwrap_err().is_denied());
    assert_eq!(
        server.received_requests().await.unwrap().len(),
        5,
        "each once"
    );
}

#[tokio::test]
async fn the_files_of_a_log_are_listed_and_odd_names_can_be_read() {
    let (server, endpoint) = server().await;
    let client = client(endpoint);
    let (request, container) = uuids();
    let list = || client.container_log_files(&request, &container);
    // A server without the call.
    let unknown = Mock::given(method("PROPFIND"))
        .respond_with(ResponseTemplate::new(404))
        .up_to_n_times(1);
    unknown.mount(&server).await;
    assert_eq!(list().await.unwrap(), None);
    let listing = format!(
        r#"<D:multistatus xmlns:D="DAV:"><D:response><D:href>{ROOT}odd%20%3F.txt</D:href><D:propstat><D:prop>
        <D:getcontentlength>12</D:getcontentlength></D:prop></D:propstat></D:response></D:multistatus>"#
    );
    Mock::given(method("PROPFIND"))
        .and(path(ROOT))
        .and(header("Depth", "1"))
        .respond_with(ResponseTemplate::new(207).set_body_raw(listing, "text/xml"))
        .mount(&server)
        .await;
    let files = list().await.unwrap().unwrap();
    assert_eq!(files, ["odd ?.txt"]);
    Mock::given(method("GET"))
        .and(path(format!("{ROOT}odd%20%3F.txt")))
        .respond_with(ranged)
        .mount(&server)
        .await;
    assert_eq!(read(&client, "odd ?.txt", 6).await.unwrap(), b"world\n");
}

//! Saved logs over WebDAV.

use reqwest::Method;
use serde_json::json;

use super::{Locked, get};
use crate::fixture::{Api, Fixture};

/// A container with a saved log.
async fn with_log(fixture: &Fixture) -> Locked {
    let locked = Locked::of(fixture).await;
    let api = &locked.attempt;
    let mut locators = Vec::new();
    for (hash, text) in [
        ("acbd18db4cc2f85cedef654fccc4a4d8", "foo"),
        ("37b51d194a7513e45b56f6524f2d51f2", "bar"),
    ] {
        let put = api.raw(Method::PUT, &format!("/{hash}")).body(text);
        let locator = put.send().await.unwrap().text().await.unwrap();
        locators.push(locator.trim().to_owned());
    }
    let manifest = format!(". {} 1:4:stdout.txt 0:0:stderr.txt\n", locators.join(" "));
    let log = json!({"collection": {"manifest_text": manifest, "is_trashed": true}});
    let log = api.post("collections", log).await.ok();
    let running = json!({"state": "Running", "log": log["portable_data_hash"]});
    api.change(&locked.uuid, running).await.ok();
    locked
}

async fn propfind(api: &Api, path: &str, depth: &str) -> (u16, String) {
    let method = Method::from_bytes(b"PROPFIND").unwrap();
    let answer = api.raw(method, path).header("depth", depth).send().await;
    let answer = answer.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_file_is_read_whole_and_in_part() {
    let fixture = Fixture::new().await;
    let locked = with_log(&fixture).await;
    let path = locked.log("/stdout.txt");
    for path in [path.clone(), path.replace(&format!("{}/", locked.uuid), "")] {
        let whole = get(&fixture.admin, &path).await;
        assert_eq!(whole.status(), 200, "{path}");
        assert_eq!(whole.headers()["accept-ranges"], "bytes");
        assert_eq!(whole.text().await.unwrap(), "ooba");
    }
    let head = fixture.admin.raw(Method::HEAD, &path).send().await.unwrap();
    assert_eq!(head.headers()["content-length"], "4");
    for (range, status, content_range, text) in [
        ("bytes=1-2", 206, "bytes 1-2/4", "ob"),
        ("bytes=-1", 206, "bytes 3-3/4", "a"),
        ("bytes=2-", 206, "bytes 2-3/4", "ba"),
        ("bytes=-0", 206, "bytes 4-3/4", ""),
        ("bytes=4-", 416, "bytes */4", ""),
    ] {
        let part = fixture.admin.raw(Method::GET, &path).header("range", range);
        let part = part.send().await.unwrap();
        assert_eq!(part.status(), status, "{range}");
        assert_eq!(part.headers()["content-range"], content_range);
        assert_eq!(part.text().await.unwrap(), text, "{range}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_log_is_listed() {
    let fixture = Fixture::new().await;
    let locked = with_log(&fixture).await;
    let (status, one) = propfind(&fixture.admin, &locked.log(""), "1").await;
    assert_eq!(status, 207);
    for href in [
        locked.log("/"),
        locked.log("/stdout.txt"),
        locked.log("/stderr.txt"),
    ] {
        assert!(one.contains(&format!("<D:href>{href}</D:href>")), "{one}");
    }
    assert!(
        one.contains("<D:getcontentlength>4</D:getcontentlength>"),
        "{one}"
    );
    let (_, zero) = propfind(&fixture.admin, &locked.log("/stdout.txt"), "0").await;
    assert_eq!(zero.matches("<D:response>").count(), 1);
    let (status, _) = propfind(&fixture.admin, &locked.log("/none"), "0").await;
    assert_eq!(status, 404);
    let (status, _) = propfind(&fixture.admin, &locked.log(""), "2").await;
    assert_eq!(status, 400);
    assert_eq!(get(&fixture.admin, &locked.log("/")).await.status(), 405);
    let options = fixture.admin.raw(Method::OPTIONS, &locked.log("/"));
    let options = options.send().await.unwrap();
    assert_eq!(
        (options.status().as_u16(), &options.headers()["dav"]),
        (200, &"1, 2".parse().unwrap())
    );
    let put = fixture.admin.raw(Method::PUT, &locked.log("/stdout.txt"));
    assert_eq!(put.send().await.unwrap().status(), 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_which_nothing_was_saved_is_an_empty_directory() {
    let fixture = Fixture::new().await;
    let locked = Locked::of(&fixture).await;
    let (status, list) = propfind(&fixture.admin, &locked.log(""), "1").await;
    assert_eq!((status, list.matches("<D:response>").count()), (207, 1));
    assert_eq!(
        get(&fixture.admin, &locked.log("/stdout.txt"))
            .await
            .status(),
        404
    );
    let earlier = locked
        .log("/stdout.txt")
        .replace(&locked.uuid, "local-dz642-aaaaaaaaaaaaaaa");
    assert_eq!(get(&fixture.admin, &earlier).await.status(), 404);
}

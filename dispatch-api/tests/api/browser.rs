//! Pages of other sites in a browser: what they may send, and what they get without a token.

use reqwest::Method;
use serde_json::json;

use crate::fixture::Fixture;

const PAGE: &str = "https://workbench.example";

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_told_what_a_page_may_send() {
    let fixture = Fixture::new().await;
    for (method, path, headers) in [
        ("GET", "/arvados/v1/groups/contents", "authorization"),
        (
            "DELETE",
            "/arvados/v1/collections/x",
            "authorization,content-type",
        ),
        (
            "PROPFIND",
            "/arvados/v1/container_requests/x/log/y",
            "authorization,depth,range,cache-control",
        ),
        ("PUT", "/acbd18db4cc2f85cedef654fccc4a4d8", "authorization"),
    ] {
        let asked = fixture
            .admin
            .bare(Method::OPTIONS, path)
            .header("Origin", PAGE)
            .header("Access-Control-Request-Method", method)
            .header("Access-Control-Request-Headers", headers);
        let answer = asked.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let header = |name: &str| {
            let name = format!("access-control-{name}");
            let value = answer.headers().get(name).unwrap();
            value.to_str().unwrap().to_lowercase().replace(' ', "")
        };
        assert_eq!(header("allow-origin"), "*");
        let methods = header("allow-methods");
        assert!(
            methods.to_uppercase().split(',').any(|one| one == method),
            "{methods}"
        );
        let allowed = header("allow-headers");
        for name in headers.split(',') {
            assert!(
                allowed.split(',').any(|one| one == name),
                "{allowed}: {name}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_may_be_read_by_a_page() {
    let fixture = Fixture::new().await;
    for (path, status) in [
        ("/arvados/v1/config", 200),
        ("/arvados/v1/vocabulary", 200),
        ("/discovery/v1/apis/arvados/v1/rest", 200),
        ("/arvados/v1/users/current", 401),
        ("/acbd18db4cc2f85cedef654fccc4a4d8+3", 401),
        ("/arvados/v1/container_requests/x/log/y", 401),
        ("/nothing", 404),
    ] {
        let answer = fixture.admin.bare(Method::GET, path).header("Origin", PAGE);
        let answer = answer.send().await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
        let origin = answer.headers().get("access-control-allow-origin");
        assert_eq!(origin.unwrap(), "*", "{path}");
        assert!(
            answer
                .headers()
                .get("access-control-allow-credentials")
                .is_none()
        );
    }
}

/// Without one of them, Workbench 2 shows an empty page.
#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_has_what_workbench_reads() {
    let fixture = Fixture::new().await;
    let config = fixture.admin.bare(Method::GET, "/arvados/v1/config");
    let config: serde_json::Value = config.send().await.unwrap().json().await.unwrap();
    for pointer in [
        "/API/UnfreezeProjectRequiresAdmin",
        "/Collections/ForwardSlashNameSubstitution",
        "/Collections/ManagedProperties",
        "/Containers/ReserveExtraRAM",
        "/InstanceTypes",
        "/Login/LoginCluster",
        "/Login/PAM/Enable",
        "/RemoteClusters",
        "/Services/ContainerWebServices/ExternalURL",
        "/Services/WebDAV/ExternalURL",
        "/Services/WebDAVDownload/ExternalURL",
        "/Services/WebShell/ExternalURL",
        "/Services/Workbench1/ExternalURL",
        "/Services/Workbench2/ExternalURL",
        "/Users/SupportEmailAddress",
        "/Volumes",
        "/Workbench/IdleTimeout",
        "/Workbench/SiteName",
    ] {
        assert!(config.pointer(pointer).is_some(), "{pointer}");
    }
    let controller = &config["Services"]["Controller"]["ExternalURL"];
    assert!(controller.as_str().unwrap().starts_with("https://"));
    let vocabulary = fixture.admin.get("vocabulary").await.ok();
    assert_eq!(vocabulary, json!({"strict_tags": false, "tags": {}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_that_cannot_exist_here_have_empty_lists() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let path = "/discovery/v1/apis/arvados/v1/rest";
    let document = user.send(user.raw(Method::GET, path)).await.ok();
    for (kind, list) in dispatch_api::api::empty_kinds::LISTS {
        let params = json!({"filters": [["name", "=", "x"]], "order": ["name"], "limit": 7});
        let answer = user.list(kind, params).await.ok();
        assert_eq!(answer["kind"], list);
        assert_eq!(answer["items"], json!([]));
        assert_eq!(
            (&answer["items_available"], &answer["limit"]),
            (&json!(0), &json!(7))
        );
        let methods = document["resources"][kind]["methods"].as_object().unwrap();
        assert_eq!(methods.keys().collect::<Vec<_>>(), ["list"], "{kind}");
        user.post(kind, json!({})).await.error_of(404);
    }
}

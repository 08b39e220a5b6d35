//! Floods by one user with a token: what they cost another user and a dispatcher, in time, and the
//! server, in memory. At the end of each, the server gets SIGTERM while the flood goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Bench;
use super::fixture::{Api, request, v2};

/// How long the clients are measured, before and during a flood.
const MEASURED: Duration = Duration::from_secs(8);
/// Concurrent requests of the user who floods.
const ATTACKERS: usize = 32;
const LINKS: usize = 20_000;
const PROJECTS: usize = 3400;
const TRASHED: usize = 8000;
const WEBSOCKETS: usize = 250;
const TOKENS: usize = 20_000;
const EQUAL_REQUESTS: usize = 3000;
/// Of a request with a large environment: 1 MB.
const VARIABLES: usize = 5000;

/// The floods, by what the user makes many of.
const FLOODS: [Flood; 10] = [
    Flood::Links,
    Flood::Projects,
    Flood::Trash,
    Flood::Shares,
    Flood::Websockets,
    Flood::Listings,
    Flood::Submits,
    Flood::Tokens,
    Flood::Equals,
    Flood::Environments,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    Links,
    Projects,
    /// Projects that were put in the trash one by one, and go on to be.
    Trash,
    /// The permissions of everybody change all the time.
    Shares,
    Websockets,
    Listings,
    Submits,
    Tokens,
    /// Equal requests, whose one container ends when the flood begins.
    Equals,
    Environments,
}

/// Runs all floods, each at a server of its own.
pub async fn run() {
    for flood in FLOODS {
        let name = format!("user: {flood:?}").to_lowercase();
        if name.contains(&std::env::var("FLOOD").unwrap_or_default()) {
            measure(&name, flood).await;
        }
    }
}

/// The measured clients.
struct Clients {
    user: Api,
    dispatcher: Api,
    container: String,
}

#[derive(Default)]
struct Times {
    user: Vec<Duration>,
    dispatcher: Vec<Duration>,
    refused: usize,
}

async fn measure(name: &str, flood: Flood) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut bench = Bench::start(directory.path());
    let [mallory, user] = [
        plain_user(&bench, "mallory").await,
        plain_user(&bench, "bob").await,
    ];
    let image = image(&user).await;
    assert_eq!(self::image(&mallory).await, image);
    let wanted = json!({"container_image": image, "name": "measured"});
    let measured = post(&user, "container_requests", request(wanted)).await;
    let own = own_uuid(&mallory, &image).await;
    let clients = Clients {
        user,
        dispatcher: bench.dispatcher(),
        container: text(&measured, "container_uuid"),
    };
    // Before what the user makes: it stays.
    let quiet = times(&clients).await;
    let began = Instant::now();
    let held = prepare(&bench, flood, &mallory).await;
    let prepared = began.elapsed();
    let stop = Arc::new(AtomicBool::new(false));
    let attacks = Arc::new(AtomicUsize::new(0));
    let mut attackers = JoinSet::new();
    for number in 0..ATTACKERS {
        let (mallory, image, own) = (mallory.clone(), image.clone(), own.clone());
        let dispatcher = bench.dispatcher();
        let (stop, attacks) = (stop.clone(), attacks.clone());
        attackers.spawn(async move {
            let mut round = number;
            while !stop.load(Ordering::Relaxed) {
                if (flood, round) == (Flood::Equals, 0) {
                    end_container(&dispatcher, &mallory, &image).await;
                }
                attack(&mallory, flood, &image, &own, round).await;
                attacks.fetch_add(1, Ordering::Relaxed);
                round += ATTACKERS;
            }
        });
    }
    let flooded = times(&clients).await;
    let resident = bench.highest_resident_mib();
    let done = attacks.load(Ordering::Relaxed);
    let ended = bench.terminate().await;
    stop.store(true, Ordering::Relaxed);
    attackers.abort_all();
    drop(held);
    let ratio = |during: &[Duration], before: &[Duration]| {
        let (during, before) = (p95(during), p95(before));
        format!("{before:.1} -> {during:.1} ms ({:.1}x)", during / before)
    };
    println!(
        "{name} (prepared in {:.0} s, {done} attacks, {} refusals): another user {}, {} requests; \
         dispatcher {}, {} rounds; {} refused before; memory at most {resident} MiB; SIGTERM {:.1} s",
        prepared.as_secs_f64(),
        flooded.refused,
        ratio(&flooded.user, &quiet.user),
        flooded.user.len(),
        ratio(&flooded.dispatcher, &quiet.dispatcher),
        flooded.dispatcher.len(),
        quiet.refused,
        ended.as_secs_f64(),
    );
}

/// What the user makes beforehand, and holds open.
async fn prepare(bench: &Bench, flood: Flood, mallory: &Api) -> Vec<Box<dyn Send>> {
    match flood {
        Flood::Links => {
            let own = image(mallory).await;
            let link = json!({"link": {"link_class": "docker_image_repo+tag", "name": "mine:latest",
                                       "head_uuid": own_uuid(mallory, &own).await}});
            many(LINKS, |_| post(mallory, "links", link.clone())).await;
            let uuid = own_uuid(mallory, &own).await;
            mallory
                .post(&format!("collections/{uuid}/trash"), json!({}))
                .await
                .ok();
        }
        Flood::Trash => {
            many(TRASHED, |number| trash_project(mallory, number)).await;
        }
        Flood::Projects | Flood::Shares | Flood::Websockets => {
            let group = |owner: Option<&str>| {
                json!({"group": {"name": "p", "group_class": "project", "owner_uuid": owner},
                                              "ensure_unique_name": true})
            };
            let parent = text(&post(mallory, "groups", group(None)).await, "uuid");
            many(PROJECTS, |_| post(mallory, "groups", group(Some(&parent)))).await;
            let everybody = "local-j7d0g-fffffffffffffff";
            let link = json!({"link": {"link_class": "permission", "name": "can_read",
                                       "tail_uuid": everybody, "head_uuid": parent}});
            post(mallory, "links", link).await;
        }
        Flood::Tokens => {
            many(TOKENS, |_| {
                post(mallory, "api_client_authorizations", json!({}))
            })
            .await
        }
        Flood::Equals => {
            let image = image(mallory).await;
            many(EQUAL_REQUESTS, |_| {
                post(mallory, "container_requests", equal(&image))
            })
            .await
        }
        Flood::Listings | Flood::Submits | Flood::Environments => {}
    }
    match flood {
        Flood::Websockets => bench.websockets_of(&mallory.token, WEBSOCKETS).await,
        _ => Vec::new(),
    }
}

/// One request of the flood.
async fn attack(mallory: &Api, flood: Flood, image: &str, own: &str, round: usize) {
    let name = format!("{round}");
    match flood {
        Flood::Links => {
            let wanted = json!({"container_image": "mine", "name": name});
            mallory
                .try_post("container_requests", request(wanted))
                .await;
        }
        Flood::Submits => {
            let wanted = json!({"container_image": image, "command": ["echo", name]});
            mallory
                .try_post("container_requests", request(wanted))
                .await;
        }
        Flood::Equals => {
            mallory.try_post("container_requests", equal(image)).await;
        }
        Flood::Environments => {
            let variables = (0..VARIABLES).map(|n| (format!("V{n}"), json!("x".repeat(200))));
            let environment: serde_json::Map<_, _> = variables.collect();
            let wanted = json!({"container_image": image, "command": ["echo", name],
                                "environment": environment});
            mallory
                .try_post("container_requests", request(wanted))
                .await;
        }
        Flood::Projects => {
            let group = json!({"group": {"name": name, "group_class": "project"}});
            mallory.try_post("groups", group).await;
        }
        Flood::Trash => drop(trash_project(mallory, TRASHED + round).await),
        Flood::Shares => {
            let everybody = "local-j7d0g-fffffffffffffff";
            let link = json!({"link": {"link_class": "permission", "name": "can_read",
                                       "tail_uuid": everybody, "head_uuid": own}});
            mallory.try_post("links", link).await;
        }
        Flood::Websockets => {
            mallory
                .try_post("collections", json!({"collection": {"name": name}}))
                .await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Flood::Listings => {
            let query = "groups?limit=1000&filters=[[\"any\",\"ilike\",\"%25zz%25\"]]&count=exact";
            mallory.try_get(query).await;
        }
        Flood::Tokens => drop(
            mallory
                .try_post("api_client_authorizations", json!({}))
                .await,
        ),
    }
}

/// A new project, in the trash; nothing above the quota.
async fn trash_project(mallory: &Api, number: usize) -> Value {
    let group = json!({"group": {"name": format!("{number}"), "group_class": "project"}});
    let made = mallory.post("groups", group).await;
    if made.status != 200 {
        return Value::Null;
    }
    let uuid = text(&made.ok(), "uuid");
    let path = format!("groups/{uuid}/trash");
    mallory.post(&path, json!({})).await.ok()
}

fn equal(image: &str) -> Value {
    request(json!({"container_image": image, "command": ["equal"]}))
}

/// Ends the container of the equal requests with results, and says how long the answer took.
async fn end_container(dispatcher: &Api, mallory: &Api, image: &str) {
    let last = post(mallory, "container_requests", equal(image)).await;
    let uuid = text(&last, "container_uuid");
    dispatcher.lock(&uuid).await.ok();
    let running = json!({"state": "Running", "log": image});
    dispatcher.change(&uuid, running).await.ok();
    let began = Instant::now();
    let done = json!({"state": "Complete", "exit_code": 0, "log": image, "output": image});
    let answer = dispatcher.change(&uuid, done).await;
    let took = began.elapsed();
    println!(
        "the end of a container: status {} after {took:.1?}",
        answer.status
    );
}

/// How long requests of the clients take, for a while.
async fn times(clients: &Clients) -> Times {
    let until = Instant::now() + MEASURED;
    let as_user = async {
        let (mut times, mut refused) = (Vec::new(), 0);
        while Instant::now() < until {
            let began = Instant::now();
            let status = match times.len() % 3 {
                0 => clients.user.try_get("collections?limit=5").await,
                1 => clients.user.try_get("groups/contents?limit=5").await,
                _ => {
                    let body = json!({"collection": {"name": "x"}, "ensure_unique_name": true});
                    clients.user.try_post("collections", body).await
                }
            };
            refused += usize::from(status != Some(200));
            times.push(began.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (times, refused)
    };
    let as_dispatcher = async {
        let (mut times, mut refused) = (Vec::new(), 0);
        let queue = "containers?limit=100&filters=[[\"state\",\"=\",\"Queued\"],[\"priority\",\">\",0]]&select=[\"uuid\"]";
        let container = format!("containers/{}", clients.container);
        while Instant::now() < until {
            let began = Instant::now();
            let listed = clients.dispatcher.try_get(queue).await;
            let body =
                json!({"container": {"runtime_status": {"activity": format!("{}", times.len())}}});
            let read = clients.dispatcher.try_get(&container).await;
            let noted = clients.dispatcher.try_post("logs", json!({"log": {"event_type": "dispatch", "object_uuid": clients.container, "properties": body}})).await;
            refused += [listed, read, noted]
                .iter()
                .filter(|status| **status != Some(200))
                .count();
            times.push(began.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (times, refused)
    };
    let ((user, refused), (dispatcher, more)) = tokio::join!(as_user, as_dispatcher);
    Times {
        user,
        dispatcher,
        refused: refused + more,
    }
}

/// In milliseconds.
fn p95(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() * 95 / 100].as_secs_f64() * 1000.0
}

async fn many<F: Future<Output = Value>>(number: usize, make: impl Fn(usize) -> F) {
    let made = stream::iter(0..number).map(make).buffer_unordered(16);
    made.for_each(|_| std::future::ready(())).await;
}

async fn post(api: &Api, path: &str, body: Value) -> Value {
    api.post(path, body).await.ok()
}

async fn plain_user(bench: &Bench, name: &str) -> Api {
    let user = json!({"user": {"username": name, "email": name, "is_active": true}});
    let admin = bench.dispatcher();
    let user = post(&admin, "users", user).await;
    let token = json!({"api_client_authorization": {"owner_uuid": user["uuid"]}});
    let token = post(&admin, "api_client_authorizations", token).await;
    bench.new_client(&v2(&token))
}

/// The hash of a collection like an image.
async fn image(api: &Api) -> String {
    let block = reqwest::Method::PUT;
    let block = api
        .raw(block, "/acbd18db4cc2f85cedef654fccc4a4d8")
        .body("foo");
    let stored = api.send(block).await.ok();
    let locator = stored.as_str().expect("a locator").trim();
    let manifest = format!(". {locator} 0:3:image.tar\n");
    let body = json!({"collection": {"manifest_text": manifest}});
    text(&post(api, "collections", body).await, "portable_data_hash")
}

async fn own_uuid(api: &Api, hash: &str) -> String {
    let hash = hash.replace('+', "%2B");
    let query = format!("collections?filters=[[\"portable_data_hash\",\"=\",\"{hash}\"]]&limit=1");
    text(&api.get(&query).await.ok()["items"][0], "uuid")
}

fn text(record: &Value, key: &str) -> String {
    record[key].as_str().expect("a text").to_owned()
}

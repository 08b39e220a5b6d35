//! A container's output directory: every case of files, links, mounts and patterns.

mod files;
mod globs;
mod hostile;
mod links;
mod many;
mod mounts;
mod roundtrip;

use crate::files_world::{Lab, World};
use serde_json::{Value, json};

const OUT: &str = "/ctr/outdir";

fn tmp_and(mounts: Value) -> Value {
    let mut all = json!({OUT: {"kind": "tmp"}});
    all.as_object_mut()
        .unwrap()
        .extend(mounts.as_object().unwrap().clone());
    json!({ "mounts": all })
}

fn part(pdh: &str, path: &str) -> Value {
    json!({"kind": "collection", "portable_data_hash": pdh, "path": path})
}

fn copy(pdh: &str, path: &str) -> Value {
    let mut mount = part(pdh, path);
    mount["writable"] = json!(true);
    mount
}

async fn plain() -> Lab {
    World::new().await.lab(tmp_and(json!({}))).await
}

//! Tests that one malformed record does not hide the other records of a snapshot.
//!
//! Input: records as JSON. Output: the parsed snapshot.

use serde_json::{Value, json};

use super::*;
use crate::api::listing::parse_row;

fn uuid(n: u32) -> ContainerUuid {
    ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
}

fn record(n: u32, capacity: Value) -> Value {
    json!({
        "uuid": uuid(n), "etag": "e", "state": "Queued", "priority": 1, "locked_by_uuid": null,
        "runtime_constraints": {"vcpus": 1, "ram": 1}, "scheduling_parameters": {},
        "mounts": {"/out": {"kind": "tmp", "capacity": capacity}},
    })
}

fn taken(records: Vec<Value>) -> ApiSnapshot {
    let mut snapshot = ApiSnapshot::default();
    snapshot.ingest(records.into_iter().filter_map(parse_row).collect());
    snapshot
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_the_others_are_seen() {
    let odd = [json!(1.5), json!("1GB"), json!(-1)];
    for odd in odd {
        let snapshot = taken(vec![
            record(1, odd.clone()),
            record(2, json!(7)),
            json!({"uuid": 3}),
        ]);
        let seen: Vec<_> = snapshot.containers.keys().cloned().collect();
        assert_eq!(seen, [uuid(2)], "{odd}");
        let why = &snapshot.malformed[&uuid(1)];
        assert!(
            !why.is_empty() && snapshot.missing.is_empty(),
            "{odd}: {why}"
        );
    }
    let mut many = record(1, json!(0));
    many["runtime_constraints"]["vcpus"] = json!(5_000_000_000u64);
    assert!(taken(vec![many]).malformed.contains_key(&uuid(1)));
}

#[test]
fn needs_beyond_all_measure_do_not_overflow() {
    let mut huge = record(1, json!(u64::MAX));
    huge["mounts"]["/tmp"] = json!({"kind": "tmp", "capacity": u64::MAX});
    let snapshot = taken(vec![huge]);
    let needs = snapshot.containers[&uuid(1)].needs.as_ref().unwrap();
    assert_eq!(needs.scratch, u64::MAX);
}

//! One odd record blinds nobody.

use serde_json::{Value, json};

use super::*;
use crate::api::row;

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

fn taken(records: Vec<Value>) -> Look {
    let mut look = Look::default();
    look.take(records.into_iter().filter_map(row).collect());
    look
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_the_others_are_seen() {
    let odd = [json!(1.5), json!("1GB"), json!(-1)];
    for odd in odd {
        let look = taken(vec![
            record(1, odd.clone()),
            record(2, json!(7)),
            json!({"uuid": 3}),
        ]);
        let seen: Vec<_> = look.containers.keys().cloned().collect();
        assert_eq!(seen, [uuid(2)], "{odd}");
        let why = &look.unreadable[&uuid(1)];
        assert!(!why.is_empty() && look.missing.is_empty(), "{odd}: {why}");
    }
    let mut many = record(1, json!(0));
    many["runtime_constraints"]["vcpus"] = json!(5_000_000_000u64);
    assert!(taken(vec![many]).unreadable.contains_key(&uuid(1)));
}

#[test]
fn needs_beyond_all_measure_do_not_overflow() {
    let mut huge = record(1, json!(u64::MAX));
    huge["mounts"]["/tmp"] = json!({"kind": "tmp", "capacity": u64::MAX});
    let look = taken(vec![huge]);
    let needs = look.containers[&uuid(1)].needs.as_ref().unwrap();
    assert_eq!(needs.scratch, u64::MAX);
}

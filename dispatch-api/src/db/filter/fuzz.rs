//! Filters of all shapes: each is a statement that SQLite runs, or a refusal that names the fault.

use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::Clause;
use crate::error::ApiError;
use crate::schema;

const OPERATORS: [&str; 15] = [
    "=", "!=", "<>", "<", "<=", ">", ">=", "in", "not in", "like", "ilike", "is_a", "exists",
    "contains", "@@",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z%_]{0,6}",
        "[\\PC\0\"'\\\\$.\\[\\]*]{0,8}",
        "[\0\"a]{1,3}",
        "[\u{0}-\u{9f}]{1,3}",
        Just("\u{fffd}\u{d7ff}\u{10ffff}".to_owned()),
        Just("%".repeat(50_001)),
        Just("2026-01-01T00:00:00Z".to_owned()),
        (0..schema::ALL.len()).prop_map(|at| schema::ALL[at].kind.to_owned()),
    ]
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(|number| number.to_string().into()),
        text().prop_map(Value::from),
    ]
}

fn operand() -> impl Strategy<Value = Value> {
    let deep =
        (1_usize..120).prop_map(|depth| (0..depth).fold(json!(1), |inner, _| json!([inner])));
    let nested = scalar().prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(text(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    prop_oneof![8 => nested, 1 => deep]
}

/// A resource and an attribute of it, or what looks like one.
fn attribute() -> impl Strategy<Value = (&'static schema::Resource, String)> {
    (0..schema::ALL.len()).prop_flat_map(|at| {
        let resource = schema::ALL[at];
        let names: Vec<&str> = resource.attrs.iter().map(|attr| attr.name).collect();
        let objects = resource.attrs.iter().filter(|attr| attr.queryable);
        let objects: Vec<&str> = objects.map(|attr| attr.name).chain(["name"]).collect();
        let (name, object) = (prop::sample::select(names), prop::sample::select(objects));
        let two = (
            name.clone(),
            prop::sample::select(&["<", "=", "~"][..]),
            name.clone(),
        );
        let attribute = prop_oneof![
            4 => name.clone().prop_map(str::to_owned),
            4 => (object, text()).prop_map(|(name, key)| format!("{name}.{key}")),
            1 => Just("any".to_owned()),
            1 => Just("file_names".to_owned()),
            1 => name.prop_map(|name| format!("container.{name}")),
            1 => two.prop_map(|(left, compare, right)| format!("({left} {compare} {right})")),
            1 => text(),
        ];
        (Just(resource), attribute)
    })
}

/// Runs what a request asks for.
fn run(
    connection: &Connection,
    table: &str,
    clause: Result<Clause, ApiError>,
) -> Result<(), String> {
    let clause = match clause {
        Ok(clause) => clause,
        Err(refused) => {
            let is_client_fault = refused.status().is_client_error();
            return is_client_fault.then_some(()).ok_or(refused.to_string());
        }
    };
    let sql = format!("SELECT 1 FROM {table} WHERE {}", clause.sql());
    let found = connection
        .prepare(&sql)
        .and_then(|mut statement| statement.exists(clause.params().as_slice()));
    found
        .map(|_| ())
        .map_err(|problem| format!("{problem} in {sql}"))
}

fn connection() -> &'static parking_lot::Mutex<Connection> {
    static SHARED: std::sync::LazyLock<parking_lot::Mutex<Connection>> =
        std::sync::LazyLock::new(|| {
            let directory = tempfile::tempdir().unwrap();
            let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
            // SQLite looks at a path or pattern only when there is a row.
            for resource in schema::ALL {
                let sql = "SELECT name, type FROM pragma_table_info(?1) \
                           WHERE \"notnull\" AND dflt_value IS NULL AND pk = 0";
                let mut columns = connection.prepare(sql).unwrap();
                let needed = columns
                    .query_map([resource.table], |row| row.get(0))
                    .unwrap();
                let mut names: Vec<String> = needed.map(|name| name.unwrap()).collect();
                names.push("uuid".to_owned());
                names.dedup();
                let values = vec!["''"; names.len()].join(", ");
                let sql = format!(
                    "INSERT INTO {} ({}) VALUES ({values})",
                    resource.table,
                    names.join(", ")
                );
                connection.execute(&sql, []).unwrap();
            }
            drop(directory);
            parking_lot::Mutex::new(connection)
        });
    &SHARED
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]
    #[test]
    fn a_filter_runs_or_is_refused(
        (resource, attribute) in attribute(),
        operator in prop::sample::select(&OPERATORS[..]),
        operand in operand(),
    ) {
        let connection = connection().lock();
        let mut clause = Clause::default();
        let added = clause.add_filters(resource, &json!([[attribute, operator, operand]]));
        let done = run(&connection, resource.table, added.map(|()| clause));
        prop_assert_eq!(done, Ok(()));
        let mut clause = Clause::default();
        let added = clause.add_where(resource, &json!({attribute: operand}));
        let done = run(&connection, resource.table, added.map(|()| clause));
        prop_assert_eq!(done, Ok(()));
    }
}

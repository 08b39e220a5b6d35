//! Fills the queue of a stopped server directly in its database.

use std::path::Path;

/// Copies the container `pattern` `count` times, with a thousand different priorities. No server
/// may run on the database.
pub fn fill(database: &Path, pattern: &str, count: u32) {
    let database = dispatch_api::db::open(database).expect("the database");
    let columns: Vec<&str> = dispatch_api::schema::CONTAINERS
        .attrs
        .iter()
        .map(|attr| attr.name)
        .collect();
    let values: Vec<&str> = columns
        .iter()
        .map(|name| match *name {
            "uuid" => "printf('local-dz642-%015d', n)",
            "priority" => "priority + n % 1000",
            name => name,
        })
        .collect();
    let copy = format!(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) \
         INSERT INTO containers ({}) SELECT {} FROM numbers, containers WHERE uuid = '{pattern}'",
        columns.join(", "),
        values.join(", ")
    );
    database.execute_batch(&copy).expect("copies");
}

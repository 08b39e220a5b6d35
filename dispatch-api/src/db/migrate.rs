//! Upgrades a database file to the current layout.

use std::path::Path;

use fail_points::fail_point;
use rusqlite::Connection;

/// Layouts in order; `user_version` is the number of applied ones.
const LAYOUT_MIGRATIONS: &[&str] = &[
    include_str!("0001_first.sql"),
    include_str!("0002_container_tokens.sql"),
    include_str!("0003_workflows.sql"),
    include_str!("0004_trash_of_projects.sql"),
    include_str!("0005_image_links.sql"),
    include_str!("0006_reach_version.sql"),
    include_str!("0007_job_numbers.sql"),
    include_str!("0008_quotas.sql"),
    include_str!("0009_readers.sql"),
    include_str!("0010_follow_ups.sql"),
    include_str!("0011_priorities_and_images.sql"),
    include_str!("0012_queue_by_user.sql"),
    include_str!("0013_group_changes.sql"),
];

#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("cannot open the database: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("cannot make the database readable by this user only: {0}")]
    Private(#[from] std::io::Error),
    #[error(
        "the database {path} was written by a newer dispatch-api (layout {found}, this program knows {known}); \
         use that version or another --state-dir"
    )]
    Newer {
        path: String,
        found: i64,
        known: i64,
    },
}

/// The number of applied layouts. Fails for the database of a newer program.
pub fn check_layout(connection: &Connection, path: &Path) -> Result<i64, MigrateError> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = LAYOUT_MIGRATIONS.len() as i64;
    if found > known {
        return Err(MigrateError::Newer {
            path: path.display().to_string(),
            found,
            known,
        });
    }
    Ok(found)
}

pub fn upgrade(connection: &mut Connection, path: &Path) -> Result<(), MigrateError> {
    let found = check_layout(connection, path)?;
    for (layout, version) in LAYOUT_MIGRATIONS.iter().zip(1i64..).skip(found as usize) {
        let step = connection.transaction()?;
        step.execute_batch(layout)?;
        step.pragma_update(None, "user_version", version)?;
        fail_point("api.migrate.before-commit");
        step.commit()?;
        fail_point("api.migrate.after-commit");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::schema;

    #[test]
    fn the_layout_and_the_attribute_tables_name_the_same_columns() {
        let mut connection = Connection::open_in_memory().unwrap();
        upgrade(&mut connection, Path::new("test")).unwrap();
        for resource in schema::ALL {
            let columns: BTreeSet<String> = connection
                .prepare(&format!(
                    "SELECT name FROM pragma_table_info('{}')",
                    resource.table
                ))
                .unwrap()
                .query_map([], |row| row.get(0))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            let attrs: BTreeSet<String> = resource.stored_attrs().map(|a| a.name.into()).collect();
            assert_eq!(columns, attrs, "{}", resource.table);
        }
    }

    #[test]
    fn a_database_from_the_future_is_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        let error = upgrade(&mut connection, Path::new("state.db")).unwrap_err();
        assert!(error.to_string().contains("newer dispatch-api"), "{error}");
    }
}

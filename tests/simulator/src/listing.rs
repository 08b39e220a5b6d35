//! Rows and pages of the simulated API server.

use arvados_client::ContainerUuid;
use dispatch_core::model::container_record::{ContainerSnapshot, ListedRecord};
use dispatch_core::model::resources::ResourceRequest;

use crate::state::{Record, SimWorld};

pub fn row(uuid: &ContainerUuid, record: &Record) -> ListedRecord {
    ListedRecord::Parsed(Box::new(ContainerSnapshot {
        uuid: uuid.clone(),
        etag: record.version.to_string(),
        state: record.state.clone(),
        priority: record.priority,
        locked_by: record.locked_by.clone(),
        modified_at: Some(record.modified_at),
        locks: record.lock_count,
        log: None,
        status: None,
        exit_code: None,
        has_end: true,
        needs: None,
        user: None,
        created_at: None,
        run_seconds: None,
    }))
}

/// Adds the container's resources to a row.
pub fn with_resources(row: ListedRecord) -> ListedRecord {
    match row {
        ListedRecord::Parsed(record) => {
            let needs = Some(ResourceRequest {
                cpus: 1,
                ..ResourceRequest::default()
            });
            ListedRecord::Parsed(Box::new(ContainerSnapshot { needs, ..*record }))
        }
        unreadable => unreadable,
    }
}

impl SimWorld {
    /// A page of a faulty server: cut short, or with a row twice.
    pub fn page(&mut self, mut rows: Vec<ListedRecord>) -> Vec<ListedRecord> {
        let odd = self.faults.odd_page;
        if rows.len() > 1 && self.draw(odd) {
            match self.rng.bool() {
                true => rows.truncate(1 + rows.len() / 2),
                false => rows.insert(0, rows[rows.len() / 2].clone()),
            }
        }
        rows
    }
}

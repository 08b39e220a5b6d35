-- Registered workflows: definitions in CWL that can be found and submitted again.

CREATE TABLE workflows (
    uuid TEXT PRIMARY KEY NOT NULL,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    name TEXT NOT NULL DEFAULT '',
    description TEXT,
    definition TEXT,
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX workflows_owner ON workflows (owner_uuid);
CREATE INDEX workflows_modified ON workflows (modified_at, uuid);

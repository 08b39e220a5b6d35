-- The first layout. Later layouts are added beside this file, never by changing it.

CREATE TABLE containers (
    uuid TEXT PRIMARY KEY NOT NULL,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    state TEXT NOT NULL DEFAULT 'Queued',
    priority INTEGER NOT NULL DEFAULT 0,
    locked_by_uuid TEXT,
    auth_uuid TEXT,
    lock_count INTEGER NOT NULL DEFAULT 0,
    command TEXT NOT NULL DEFAULT '[]',
    container_image TEXT NOT NULL DEFAULT '',
    cwd TEXT NOT NULL DEFAULT '.',
    output_path TEXT NOT NULL DEFAULT '',
    environment TEXT NOT NULL DEFAULT '{}',
    mounts TEXT NOT NULL DEFAULT '{}',
    runtime_constraints TEXT NOT NULL DEFAULT '{}',
    scheduling_parameters TEXT NOT NULL DEFAULT '{}',
    runtime_status TEXT NOT NULL DEFAULT '{}',
    runtime_user_uuid TEXT,
    runtime_auth_scopes TEXT NOT NULL DEFAULT '["all"]',
    exit_code INTEGER,
    log TEXT,
    output TEXT,
    output_glob TEXT NOT NULL DEFAULT '[]',
    output_properties TEXT NOT NULL DEFAULT '{}',
    output_storage_classes TEXT NOT NULL DEFAULT '["default"]',
    progress REAL,
    cost REAL NOT NULL DEFAULT 0.0,
    subrequests_cost REAL NOT NULL DEFAULT 0.0,
    started_at TEXT,
    finished_at TEXT,
    gateway_address TEXT,
    interactive_session_started INTEGER NOT NULL DEFAULT 0,
    service INTEGER NOT NULL DEFAULT 0,
    published_ports TEXT NOT NULL DEFAULT '{}',
    secret_mounts TEXT NOT NULL DEFAULT '{}',
    runtime_token TEXT,
    reuse_key TEXT NOT NULL DEFAULT '',
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX containers_queue ON containers (state, priority, uuid);
CREATE INDEX containers_holder ON containers (locked_by_uuid) WHERE locked_by_uuid IS NOT NULL;
CREATE INDEX containers_auth ON containers (auth_uuid) WHERE auth_uuid IS NOT NULL;
CREATE INDEX containers_modified ON containers (modified_at, uuid);
CREATE INDEX containers_created ON containers (created_at, uuid);
CREATE INDEX containers_reuse ON containers (reuse_key, state);

CREATE TABLE container_requests (
    uuid TEXT PRIMARY KEY NOT NULL,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    name TEXT NOT NULL DEFAULT '',
    description TEXT,
    properties TEXT NOT NULL DEFAULT '{}',
    state TEXT NOT NULL DEFAULT 'Uncommitted',
    priority INTEGER NOT NULL DEFAULT 0,
    requesting_container_uuid TEXT,
    container_uuid TEXT,
    container_count INTEGER NOT NULL DEFAULT 0,
    container_count_max INTEGER,
    command TEXT NOT NULL DEFAULT '[]',
    container_image TEXT NOT NULL DEFAULT '',
    cwd TEXT NOT NULL DEFAULT '.',
    output_path TEXT NOT NULL DEFAULT '',
    environment TEXT NOT NULL DEFAULT '{}',
    mounts TEXT NOT NULL DEFAULT '{}',
    runtime_constraints TEXT NOT NULL DEFAULT '{}',
    scheduling_parameters TEXT NOT NULL DEFAULT '{}',
    expires_at TEXT,
    filters TEXT,
    log_uuid TEXT,
    output_uuid TEXT,
    output_name TEXT,
    output_ttl INTEGER NOT NULL DEFAULT 0,
    output_glob TEXT NOT NULL DEFAULT '[]',
    output_properties TEXT NOT NULL DEFAULT '{}',
    output_storage_classes TEXT NOT NULL DEFAULT '["default"]',
    cumulative_cost REAL NOT NULL DEFAULT 0.0,
    service INTEGER NOT NULL DEFAULT 0,
    published_ports TEXT NOT NULL DEFAULT '{}',
    use_existing INTEGER NOT NULL DEFAULT 1,
    runtime_token TEXT NOT NULL DEFAULT '',
    secret_mounts TEXT NOT NULL DEFAULT '{}',
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX container_requests_container ON container_requests (container_uuid);
CREATE INDEX container_requests_parent ON container_requests (requesting_container_uuid)
    WHERE requesting_container_uuid IS NOT NULL;
CREATE INDEX container_requests_owner ON container_requests (owner_uuid);
CREATE INDEX container_requests_modified ON container_requests (modified_at, uuid);
CREATE INDEX container_requests_created ON container_requests (created_at, uuid);

CREATE TABLE collections (
    uuid TEXT PRIMARY KEY NOT NULL,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    name TEXT NOT NULL DEFAULT '',
    description TEXT,
    properties TEXT NOT NULL DEFAULT '{}',
    portable_data_hash TEXT NOT NULL,
    manifest_text TEXT NOT NULL DEFAULT '',
    unsigned_manifest_text TEXT NOT NULL DEFAULT '',
    file_count INTEGER NOT NULL DEFAULT 0,
    file_size_total INTEGER NOT NULL DEFAULT 0,
    replication_desired INTEGER,
    replication_confirmed INTEGER,
    replication_confirmed_at TEXT,
    storage_classes_desired TEXT NOT NULL DEFAULT '["default"]',
    storage_classes_confirmed TEXT NOT NULL DEFAULT '[]',
    storage_classes_confirmed_at TEXT,
    version INTEGER NOT NULL DEFAULT 1,
    current_version_uuid TEXT NOT NULL,
    preserve_version INTEGER NOT NULL DEFAULT 0,
    is_trashed INTEGER NOT NULL DEFAULT 0,
    trash_at TEXT,
    delete_at TEXT,
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE UNIQUE INDEX collections_name ON collections (owner_uuid, name)
    WHERE is_trashed = 0 AND name <> '';
CREATE INDEX collections_pdh ON collections (portable_data_hash);
CREATE INDEX collections_modified ON collections (modified_at, uuid);
CREATE INDEX collections_created ON collections (created_at, uuid);
CREATE INDEX collections_trash ON collections (trash_at) WHERE trash_at IS NOT NULL;
CREATE INDEX collections_delete ON collections (delete_at) WHERE delete_at IS NOT NULL;

CREATE TABLE links (
    uuid TEXT PRIMARY KEY NOT NULL,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    link_class TEXT NOT NULL DEFAULT '',
    name TEXT NOT NULL DEFAULT '',
    head_uuid TEXT NOT NULL DEFAULT '',
    tail_uuid TEXT NOT NULL DEFAULT '',
    properties TEXT NOT NULL DEFAULT '{}',
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX links_name ON links (link_class, name);
CREATE INDEX links_head ON links (head_uuid);
CREATE INDEX links_tail ON links (tail_uuid, link_class);

CREATE TABLE logs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL UNIQUE,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    object_uuid TEXT,
    object_owner_uuid TEXT,
    object_kind TEXT,
    event_at TEXT NOT NULL,
    event_type TEXT NOT NULL DEFAULT '',
    summary TEXT,
    properties TEXT NOT NULL DEFAULT '{}',
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX logs_object ON logs (object_uuid, event_at);
CREATE INDEX logs_created ON logs (created_at);

CREATE TABLE users (
    uuid TEXT PRIMARY KEY NOT NULL,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    email TEXT NOT NULL DEFAULT '',
    username TEXT NOT NULL DEFAULT '',
    first_name TEXT NOT NULL DEFAULT '',
    last_name TEXT NOT NULL DEFAULT '',
    identity_url TEXT NOT NULL DEFAULT '',
    is_active INTEGER NOT NULL DEFAULT 0,
    is_admin INTEGER NOT NULL DEFAULT 0,
    prefs TEXT NOT NULL DEFAULT '{}',
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE UNIQUE INDEX users_username ON users (username) WHERE username <> '';

CREATE TABLE api_client_authorizations (
    uuid TEXT PRIMARY KEY NOT NULL,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    api_token TEXT NOT NULL UNIQUE,
    scopes TEXT NOT NULL DEFAULT '["all"]',
    expires_at TEXT,
    last_used_at TEXT,
    last_used_by_ip_address TEXT,
    created_by_ip_address TEXT,
    attempt_of TEXT,
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX tokens_owner ON api_client_authorizations (owner_uuid);
CREATE INDEX tokens_attempt ON api_client_authorizations (attempt_of) WHERE attempt_of IS NOT NULL;
CREATE INDEX tokens_expiry ON api_client_authorizations (expires_at) WHERE expires_at IS NOT NULL;

-- Attempt tokens are checked by their signature; what the server decided about one since it was
-- signed (an earlier end, or a later one) is kept here.
CREATE TABLE attempt_overrides (
    uuid TEXT PRIMARY KEY NOT NULL,
    expires_at TEXT,
    signed_until TEXT
) STRICT;

CREATE TABLE groups (
    uuid TEXT PRIMARY KEY NOT NULL,
    owner_uuid TEXT NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    modified_by_user_uuid TEXT,
    name TEXT NOT NULL DEFAULT '',
    description TEXT,
    group_class TEXT NOT NULL DEFAULT 'project',
    properties TEXT NOT NULL DEFAULT '{}',
    row_version INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE UNIQUE INDEX groups_name ON groups (owner_uuid, name) WHERE name <> '';

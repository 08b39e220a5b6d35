-- What a change of a container means for its requests is done a few at a time. A row remembers the
-- last request that was done.
CREATE TABLE follow_ups (
    container_uuid TEXT NOT NULL,
    kind TEXT NOT NULL,
    after_created_at TEXT NOT NULL,
    after_uuid TEXT NOT NULL,
    retry_uuid TEXT,
    PRIMARY KEY (container_uuid, kind)
) STRICT;

-- The open requests of a container, and those that it made, in the order in which they follow it.
CREATE INDEX container_requests_open ON container_requests (
    container_uuid, created_at, uuid, priority, requesting_container_uuid
) WHERE state = 'Committed';
CREATE INDEX container_requests_open_children ON container_requests (
    requesting_container_uuid, created_at, uuid
) WHERE state = 'Committed' AND requesting_container_uuid IS NOT NULL;

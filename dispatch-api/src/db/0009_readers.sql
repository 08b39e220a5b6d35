-- Who may read a container, or content, is found by the owners of its requests or collections, each
-- looked at once: one may have very many of them.

DROP INDEX container_requests_container;
CREATE INDEX container_requests_container ON container_requests (container_uuid, owner_uuid);
DROP INDEX collections_pdh;
CREATE INDEX collections_pdh ON collections (
    portable_data_hash, owner_uuid, is_trashed, modified_at DESC
);

-- A value that changes whenever a group is moved or deleted. Permissions change more often, and
-- there may be thousands of groups to read.
ALTER TABLE reach_version ADD COLUMN groups_version BLOB NOT NULL DEFAULT x'00';
DROP TRIGGER reach_by_moved_group;
CREATE TRIGGER reach_by_moved_group AFTER UPDATE OF owner_uuid ON groups
WHEN NEW.owner_uuid <> OLD.owner_uuid
BEGIN UPDATE reach_version SET version = randomblob(16), groups_version = randomblob(16); END;
DROP TRIGGER reach_without_group;
CREATE TRIGGER reach_without_group AFTER DELETE ON groups
BEGIN UPDATE reach_version SET version = randomblob(16), groups_version = randomblob(16); END;
-- As that of the permissions: what is kept in memory by it is that of one database.
UPDATE reach_version SET groups_version = randomblob(16);

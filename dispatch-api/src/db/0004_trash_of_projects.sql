-- Projects in the trash, with all that is in them.

ALTER TABLE groups ADD COLUMN is_trashed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN trash_at TEXT;
ALTER TABLE groups ADD COLUMN delete_at TEXT;
DROP INDEX groups_name;
CREATE UNIQUE INDEX groups_name ON groups (owner_uuid, name) WHERE name <> '' AND is_trashed = 0;
CREATE INDEX groups_trash ON groups (trash_at) WHERE trash_at IS NOT NULL;
CREATE INDEX groups_owner ON groups (owner_uuid);
CREATE INDEX collections_owner ON collections (owner_uuid);

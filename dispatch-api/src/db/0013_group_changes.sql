-- The newest changes of groups: of their owners, and of the times at which they go to the trash.
-- Who has the tree of all groups in memory reads these alone, however many groups there are.

CREATE TABLE group_changes (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL) STRICT;
INSERT INTO group_changes VALUES (1, '');
CREATE TRIGGER group_changes_end AFTER INSERT ON group_changes
BEGIN DELETE FROM group_changes WHERE id <= NEW.id - 1000; END;

CREATE TRIGGER group_made AFTER INSERT ON groups
BEGIN INSERT INTO group_changes (uuid) VALUES (NEW.uuid); END;
CREATE TRIGGER group_changed AFTER UPDATE OF owner_uuid, trash_at ON groups
WHEN NEW.owner_uuid <> OLD.owner_uuid OR NEW.trash_at IS NOT OLD.trash_at
BEGIN INSERT INTO group_changes (uuid) VALUES (NEW.uuid); END;
CREATE TRIGGER group_deleted AFTER DELETE ON groups
BEGIN INSERT INTO group_changes (uuid) VALUES (OLD.uuid); END;

-- The value that said whether they must be read anew.
DROP TRIGGER reach_by_moved_group;
CREATE TRIGGER reach_by_moved_group AFTER UPDATE OF owner_uuid ON groups
WHEN NEW.owner_uuid <> OLD.owner_uuid
BEGIN UPDATE reach_version SET version = randomblob(16); END;
DROP TRIGGER reach_without_group;
CREATE TRIGGER reach_without_group AFTER DELETE ON groups
BEGIN UPDATE reach_version SET version = randomblob(16); END;
ALTER TABLE reach_version DROP COLUMN groups_version;

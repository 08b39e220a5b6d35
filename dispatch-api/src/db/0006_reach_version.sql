-- A value that changes whenever somebody may reach something that they did not reach before, or no
-- longer does. New groups change nothing that was reached before. It is random, because a counter
-- would have the same value again after a rollback.

CREATE TABLE reach_version (id INTEGER PRIMARY KEY CHECK (id = 0), version BLOB NOT NULL) STRICT;
INSERT INTO reach_version VALUES (0, randomblob(16));

CREATE TRIGGER reach_by_new_link AFTER INSERT ON links WHEN NEW.link_class = 'permission'
BEGIN UPDATE reach_version SET version = randomblob(16); END;
CREATE TRIGGER reach_by_changed_link AFTER UPDATE ON links
WHEN NEW.link_class = 'permission' OR OLD.link_class = 'permission'
BEGIN UPDATE reach_version SET version = randomblob(16); END;
CREATE TRIGGER reach_without_link AFTER DELETE ON links WHEN OLD.link_class = 'permission'
BEGIN UPDATE reach_version SET version = randomblob(16); END;
CREATE TRIGGER reach_by_moved_group AFTER UPDATE OF owner_uuid ON groups
WHEN NEW.owner_uuid <> OLD.owner_uuid
BEGIN UPDATE reach_version SET version = randomblob(16); END;
CREATE TRIGGER reach_without_group AFTER DELETE ON groups
BEGIN UPDATE reach_version SET version = randomblob(16); END;

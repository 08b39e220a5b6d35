-- Which user created a record, and how many of each kind each user has: what quotas count. Records
-- of before count for nobody.

CREATE TABLE quota_use (
    user_uuid TEXT NOT NULL,
    kind TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (user_uuid, kind)
) STRICT, WITHOUT ROWID;

ALTER TABLE links ADD COLUMN created_by TEXT;
CREATE TRIGGER quota_of_new_link AFTER INSERT ON links WHEN NEW.created_by IS NOT NULL
BEGIN INSERT INTO quota_use VALUES (NEW.created_by, 'links', 1)
ON CONFLICT (user_uuid, kind) DO UPDATE SET count = count + 1; END;
CREATE TRIGGER quota_without_link AFTER DELETE ON links WHEN OLD.created_by IS NOT NULL
BEGIN UPDATE quota_use SET count = count - 1
WHERE user_uuid = OLD.created_by AND kind = 'links'; END;

ALTER TABLE groups ADD COLUMN created_by TEXT;
CREATE TRIGGER quota_of_new_group AFTER INSERT ON groups WHEN NEW.created_by IS NOT NULL
BEGIN INSERT INTO quota_use VALUES (NEW.created_by, 'groups', 1)
ON CONFLICT (user_uuid, kind) DO UPDATE SET count = count + 1; END;
CREATE TRIGGER quota_without_group AFTER DELETE ON groups WHEN OLD.created_by IS NOT NULL
BEGIN UPDATE quota_use SET count = count - 1
WHERE user_uuid = OLD.created_by AND kind = 'groups'; END;

ALTER TABLE api_client_authorizations ADD COLUMN created_by TEXT;
CREATE TRIGGER quota_of_new_token AFTER INSERT ON api_client_authorizations
WHEN NEW.created_by IS NOT NULL
BEGIN INSERT INTO quota_use VALUES (NEW.created_by, 'api_client_authorizations', 1)
ON CONFLICT (user_uuid, kind) DO UPDATE SET count = count + 1; END;
CREATE TRIGGER quota_without_token AFTER DELETE ON api_client_authorizations
WHEN OLD.created_by IS NOT NULL
BEGIN UPDATE quota_use SET count = count - 1
WHERE user_uuid = OLD.created_by AND kind = 'api_client_authorizations'; END;

-- Requests that have not ended. An ended one never begins again.
ALTER TABLE container_requests ADD COLUMN created_by TEXT;
CREATE TRIGGER quota_of_new_request AFTER INSERT ON container_requests
WHEN NEW.created_by IS NOT NULL
BEGIN INSERT INTO quota_use VALUES (NEW.created_by, 'container_requests', 1)
ON CONFLICT (user_uuid, kind) DO UPDATE SET count = count + 1; END;
CREATE TRIGGER quota_of_ended_request AFTER UPDATE OF state ON container_requests
WHEN NEW.created_by IS NOT NULL AND NEW.state = 'Final' AND OLD.state <> 'Final'
BEGIN UPDATE quota_use SET count = count - 1
WHERE user_uuid = NEW.created_by AND kind = 'container_requests'; END;
CREATE TRIGGER quota_without_request AFTER DELETE ON container_requests
WHEN OLD.created_by IS NOT NULL AND OLD.state <> 'Final'
BEGIN UPDATE quota_use SET count = count - 1
WHERE user_uuid = OLD.created_by AND kind = 'container_requests'; END;

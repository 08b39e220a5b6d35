-- The last number that each user's jobs were given. Numbers of before are in the requests, where
-- clients could write anything.

CREATE TABLE job_numbers (user_uuid TEXT PRIMARY KEY NOT NULL, last INTEGER NOT NULL) STRICT;
INSERT INTO job_numbers
SELECT owner_uuid, max(properties ->> '$.dispatch_id') FROM container_requests
WHERE typeof(properties ->> '$.dispatch_id') = 'integer'
    AND properties ->> '$.dispatch_id' BETWEEN 1 AND 9007199254740991
    AND properties ->> '$.dispatch_user' = owner_uuid
GROUP BY owner_uuid;

-- The open requests of a container in the order in which they follow it.
DROP INDEX container_requests_open;
CREATE INDEX container_requests_open ON container_requests (container_uuid, created_at, uuid)
WHERE state = 'Committed';
-- Those that give a container its priority: by the container that made them, the weightiest first.
CREATE INDEX container_requests_weights ON container_requests (
    container_uuid, ifnull(requesting_container_uuid, ''), priority DESC, created_at
) WHERE state = 'Committed' AND priority > 0;

-- What an image link means: the content that its collection had when the link was made.
ALTER TABLE links ADD COLUMN head_pdh TEXT;
UPDATE links SET head_pdh = (SELECT portable_data_hash FROM collections WHERE uuid = head_uuid)
WHERE link_class IN ('docker_image_repo+tag', 'docker_image_hash');

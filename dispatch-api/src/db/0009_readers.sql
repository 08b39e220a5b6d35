-- Who may read a container, or content, is found by the owners of its requests or collections, each
-- looked at once: one may have very many of them.

DROP INDEX container_requests_container;
CREATE INDEX container_requests_container ON container_requests (container_uuid, owner_uuid);
DROP INDEX collections_pdh;
CREATE INDEX collections_pdh ON collections (
    portable_data_hash, owner_uuid, is_trashed, modified_at DESC
);

-- The token of a container is valid only while the container has it; `containers.auth_uuid` names
-- the token, and this column the container.

ALTER TABLE api_client_authorizations ADD COLUMN container_of TEXT;
UPDATE api_client_authorizations SET container_of =
    (SELECT uuid FROM containers WHERE auth_uuid = api_client_authorizations.uuid)
    WHERE uuid IN (SELECT auth_uuid FROM containers WHERE auth_uuid IS NOT NULL);

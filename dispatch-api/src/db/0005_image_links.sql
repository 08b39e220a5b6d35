-- The links of a name by their writer, newest first.

DROP INDEX links_name;
CREATE INDEX links_image ON links (
    link_class,
    name,
    modified_by_user_uuid,
    coalesce(json_extract(properties, '$.image_timestamp'), '') DESC,
    created_at DESC,
    uuid DESC
);

-- The queue in its order, without a sort. Without the containers of some users it is read from the
-- index alone: their number costs no read of a record.
DROP INDEX containers_queue;
CREATE INDEX containers_queue ON containers (state, priority DESC, uuid, runtime_user_uuid);

-- Keys of service accounts remember how long they were made for, 0 if for ever: while a key that was rotated is in its period of
-- grace, its end does not tell, and rotating it again must not make a key that ends as soon.
ALTER TABLE api_keys ADD COLUMN lifetime_seconds bigint NOT NULL DEFAULT 0;
UPDATE api_keys SET lifetime_seconds = ceil(extract(epoch FROM expires_at - created_at))
 WHERE device_id IS NULL AND expires_at IS NOT NULL;

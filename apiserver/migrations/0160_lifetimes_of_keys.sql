-- Keys of service accounts remember how long they were made for, 0 if for ever: while a key that was rotated is in its period of
-- grace, its end does not tell, and rotating it again must not make a key that ends as soon. Where it is not known, as of a key that was
-- made by a process of an earlier release during an upgrade, the end tells.
ALTER TABLE api_keys ADD COLUMN lifetime_seconds bigint;

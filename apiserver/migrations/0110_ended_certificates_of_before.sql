-- What ended before the trigger was there: in a transaction of its own, so that sign-ins by certificate need not wait for it.
UPDATE device_certificates c SET ended_at = least(k.revoked_at, k.expires_at)
FROM api_keys k
WHERE k.tenant_id = c.tenant_id AND k.key_id = c.key_id AND c.not_after > least(k.revoked_at, k.expires_at);

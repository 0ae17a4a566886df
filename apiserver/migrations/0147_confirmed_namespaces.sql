-- Whether the operator has found the namespace to be the tenant's. Until then, and when it is no longer, the name alone gives nobody
-- access. Namespaces of before count as confirmed; the operator withdraws those that are not the tenant's.
ALTER TABLE tenants ADD COLUMN namespace_confirmed boolean NOT NULL DEFAULT false;
UPDATE tenants SET namespace_confirmed = true WHERE purged_at IS NULL;

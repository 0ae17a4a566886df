-- PostgreSQL checked the rollout of each member that was inserted, by a statement of its own and by locking the rollout's row, which
-- the transaction that inserts members has locked already. A rollout is deleted only with its tenant, of which all rows go.
ALTER TABLE ota_rollout_devices DROP CONSTRAINT ota_rollout_devices_tenant_id_rollout_id_fkey;

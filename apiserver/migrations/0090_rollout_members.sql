-- A rollout inserts a member for each of its devices: it costs as little as it can (docs/decisions/0075).

-- PostgreSQL checked the rollout of each member that was inserted, by a statement of its own and by locking the rollout's row, which
-- the transaction that inserts members has locked already. A rollout is deleted only with its tenant, of which all rows go.
ALTER TABLE ota_rollout_devices DROP CONSTRAINT ota_rollout_devices_tenant_id_rollout_id_fkey;

-- In this order the primary key finds the rollouts of a device too. Lists of a rollout's devices go by their states.
ALTER TABLE ota_rollout_devices DROP CONSTRAINT ota_rollout_devices_pkey;
ALTER TABLE ota_rollout_devices ADD PRIMARY KEY (tenant_id, device_id, rollout_id);
DROP INDEX ota_rollout_devices_by_device;

-- How long the batches of a tenant stay open, if longer than the installation's setting; 0: not longer.
ALTER TABLE tenants ADD COLUMN batch_seconds int4 NOT NULL DEFAULT 0 CHECK (batch_seconds BETWEEN 0 AND 600);
GRANT UPDATE (batch_seconds) ON tenants TO kellet_tenant;

-- Retention: how long a tenant's payloads are kept. Leaf vectors and proofs stay.

-- Days, counted from a point's own time; 0: for ever.
ALTER TABLE tenants ADD COLUMN retention_days int4 NOT NULL DEFAULT 0 CHECK (retention_days BETWEEN 0 AND 36500);
GRANT UPDATE (retention_days) ON tenants TO kellet_tenant;

-- When the segment was last searched for points past their retention.
ALTER TABLE telemetry_segments ADD COLUMN expired_at timestamptz NOT NULL DEFAULT '-infinity';
CREATE INDEX telemetry_segments_to_expire ON telemetry_segments (expired_at) WHERE state = 'indexed';

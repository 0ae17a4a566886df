-- Events that the broker refuses for what they are (too large, for one) and that must not keep the others waiting. Trusted for:
-- every such event until an administrator sends it again or drops it, for 30 days. No tenant sees it.
CREATE TABLE outbox_set_aside (
  event_id uuid PRIMARY KEY,
  tenant_id text NOT NULL,
  subject text NOT NULL,
  payload text NOT NULL,
  reason text NOT NULL,
  set_aside_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE outbox_set_aside ENABLE ROW LEVEL SECURITY;

-- Whoever adds an event learns its position, by which a held one is found again.
GRANT SELECT (position) ON outbox TO kellet_tenant;

-- Whether points of the tenant are published on NATS; NULL: as KELLET_PUBLISH_POINTS says.
ALTER TABLE tenants ADD COLUMN publish_points boolean;

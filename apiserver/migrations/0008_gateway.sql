-- The gateway: requests counted per tenant and minute, and the transaction processor's callbacks.

-- Trusted for: how many requests a tenant has made in a minute of the database's clock. Unlogged: a crash of the database
-- may begin the current minute anew, which costs nothing but one minute's exactness.
CREATE UNLOGGED TABLE rate_windows (
  tenant_id text NOT NULL,
  window_minute int4 NOT NULL,
  hits int4 NOT NULL,
  PRIMARY KEY (tenant_id, window_minute)
);

-- Trusted for: every callback that was answered 200, byte for byte, until it is on the broker. Across tenants: a callback
-- belongs to a transaction, which may hold the points of one batch only, but the processor does not know whose.
CREATE TABLE arc_callbacks (
  callback_id uuid PRIMARY KEY,
  position int8 GENERATED ALWAYS AS IDENTITY,
  body bytea NOT NULL,
  received_at timestamptz NOT NULL DEFAULT now(),
  published_at timestamptz
);
CREATE INDEX arc_callbacks_unpublished ON arc_callbacks (position) WHERE published_at IS NULL;
CREATE INDEX arc_callbacks_published ON arc_callbacks (published_at) WHERE published_at IS NOT NULL;

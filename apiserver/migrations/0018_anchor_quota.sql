-- anchors_per_day is counted when an anchor is promised, in one row a tenant: a per_event point when it is accepted, a batch of
-- the other modes when its transaction is made. Trusted for: how much of a day's quota is used.
CREATE TABLE anchor_usage (
  tenant_id text PRIMARY KEY,
  -- The UTC day that `used` counts.
  day date NOT NULL,
  used int8 NOT NULL
);
SELECT kellet_isolate('anchor_usage', 'SELECT, INSERT, UPDATE');

-- Takes up to `wanted` anchors from what is left of the tenant's anchors_per_day, and returns how many; all of them when the
-- tenant has no quota (absent or 0), which is not counted. Exact across processes: the row is locked until the transaction ends.
CREATE FUNCTION anchors_reserve(tenant text, wanted int8) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
  quota int8;
  today date := (now() AT TIME ZONE 'UTC')::date;
  usage anchor_usage;
  granted int8;
BEGIN
  SELECT coalesce((quotas ->> 'anchors_per_day')::numeric::int8, 0) INTO quota FROM tenants WHERE tenant_id = tenant;
  IF coalesce(quota, 0) <= 0 OR wanted <= 0 THEN
    RETURN wanted;
  END IF;
  SELECT * INTO usage FROM anchor_usage WHERE tenant_id = tenant;
  -- A quota that is used up is seen without a lock.
  IF usage.day >= today AND usage.used >= quota THEN
    RETURN 0;
  END IF;
  INSERT INTO anchor_usage (tenant_id, day, used) VALUES (tenant, today, 0) ON CONFLICT DO NOTHING;
  SELECT * INTO usage FROM anchor_usage WHERE tenant_id = tenant FOR UPDATE;
  -- A transaction that began before midnight may come after one that began later.
  IF usage.day < today THEN
    usage.day := today;
    usage.used := 0;
  END IF;
  granted := least(wanted, greatest(0, quota - usage.used));
  UPDATE anchor_usage SET day = usage.day, used = usage.used + granted WHERE tenant_id = tenant;
  RETURN granted;
END
$$;

-- What was submitted today already counts, for tenants with a quota.
INSERT INTO anchor_usage (tenant_id, day, used)
  SELECT tenant_id, (now() AT TIME ZONE 'UTC')::date, count(*)
  FROM tenants JOIN anchor_batches USING (tenant_id)
  WHERE coalesce((quotas ->> 'anchors_per_day')::numeric, 0) > 0
    AND anchor_batches.created_at >= now() - interval '2 days'
    AND submitted_at >= date_trunc('day', now(), 'UTC')
  GROUP BY tenant_id;

-- Sealed batches by tenant, oldest first: each tenant's next one is found whatever the others have waiting.
CREATE INDEX anchor_batches_sealed ON anchor_batches (tenant_id, created_at)
  WHERE status = 'sealed' AND anchor_mode <> 'per_event';
CREATE INDEX anchor_batches_sealed_per_event ON anchor_batches (tenant_id, created_at)
  WHERE status = 'sealed' AND anchor_mode = 'per_event';

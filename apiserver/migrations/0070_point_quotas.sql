-- points_per_day is enforced by leases: a process takes a part of a tenant's points of the day in advance and accepts
-- points from it without asking again. What is leased never exceeds the quota; what a process does not need it returns.

-- Trusted for: how many of a day's points are accepted or leased. One row for each tenant that has, or had, the quota.
CREATE TABLE telemetry_quotas (
  tenant_id text PRIMARY KEY,
  -- The UTC day that the other columns count.
  day date NOT NULL,
  leased int8 NOT NULL,
  -- Points rejected because the quota was used up.
  refused int8 NOT NULL DEFAULT 0
);
SELECT kellet_isolate('telemetry_quotas', 'SELECT, INSERT, UPDATE');

-- Leases `wanted` points and up to `ahead` further ones, at most an eighth of what then remains, so that no process
-- holds much when little is left. Returns what was granted, 'infinity' if the tenant has no quota (absent or 0), the day
-- and the seconds until its end. The row is locked until the transaction ends.
CREATE FUNCTION telemetry_lease_points(
  tenant text, wanted int8, ahead int8, OUT granted float8, OUT today date, OUT seconds_left float8
) LANGUAGE plpgsql AS $$
DECLARE
  quota int8;
  held telemetry_quotas;
  remaining int8;
BEGIN
  today := (now() AT TIME ZONE 'UTC')::date;
  seconds_left := extract(epoch FROM ((today + 1)::timestamp AT TIME ZONE 'UTC') - now());
  SELECT coalesce((quotas ->> 'points_per_day')::numeric::int8, 0) INTO quota FROM tenants WHERE tenant_id = tenant;
  IF coalesce(quota, 0) <= 0 THEN
    granted := 'infinity';
    RETURN;
  END IF;
  SELECT * INTO held FROM telemetry_quotas WHERE tenant_id = tenant;
  -- A quota that is used up is seen without a lock.
  IF held.day >= today AND held.leased >= quota THEN
    granted := 0;
    RETURN;
  END IF;
  INSERT INTO telemetry_quotas (tenant_id, day, leased) VALUES (tenant, today, 0) ON CONFLICT DO NOTHING;
  SELECT * INTO held FROM telemetry_quotas WHERE tenant_id = tenant FOR UPDATE;
  -- A transaction that began before midnight may come after one that began later.
  IF held.day < today THEN
    held := (tenant, today, 0, 0);
  ELSE
    today := held.day;
  END IF;
  remaining := greatest(0, quota - held.leased);
  granted := least(remaining, wanted + least(ahead, greatest(0, remaining - wanted) / 8));
  UPDATE telemetry_quotas SET day = held.day, leased = held.leased + granted::int8, refused = held.refused
  WHERE tenant_id = tenant;
END
$$;

-- Actions of rules, each tenant's in order: those of a suspended tenant wait, and delay no other tenant's.
CREATE INDEX rule_actions_of_tenant ON rule_actions (tenant_id, next_at) WHERE dead_at IS NULL;
DROP INDEX rule_actions_due;

-- Finds the transaction that has waited longest for its block.
CREATE INDEX chain_transactions_waiting ON chain_transactions (created_at) WHERE state = 'pending';

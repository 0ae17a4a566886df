// The tenants of a full house with their devices, made by PostgreSQL itself from numbers.
import type { Sizes } from './sizes.ts';

/** Statement that makes ids of version 7 from a time and a number, the same in every run. */
export const idFunctions = `
  CREATE SCHEMA year;
  CREATE FUNCTION year.id(kind text, n int8, at timestamptz DEFAULT '2026-01-01') RETURNS uuid
  LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(h, 14, 3) || '-8' || substr(h, 18, 3) || '-' || substr(h, 21, 12))::uuid
    FROM (SELECT lpad(to_hex((extract(epoch FROM at) * 1000)::int8), 12, '0') || md5(kind || n) AS h) AS hex
  $$;
  CREATE FUNCTION year.tenant(n int8) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 'tenant-' || n $$`;

/** A table to fill: its name, and a query that returns its rows. */
export interface Filling {
  readonly table: string;
  readonly columns: string;
  readonly rows: string;
}

/** SQL: a time within the past year, later for greater numbers of `of`. */
const within = (n: string, of: number) => `now() - interval '1 year' * (1 - ${n}::float8 / ${of})`;

/** Returns the query that numbers the devices: the first half belongs to tenant 1, the others are spread. */
export const deviceNumbers = ({ tenants, devices }: Sizes): string => `
  CREATE TABLE year.devices AS
    SELECT n, tenant, year.tenant(tenant) AS tenant_id, year.id('device', n) AS device_id, year.id('profile', tenant) AS profile_id
    FROM generate_series(1, ${devices}) AS n,
      LATERAL (SELECT CASE WHEN n <= ${devices / 2} THEN 1 ELSE 2 + n % ${tenants - 1} END AS tenant) AS t;
  CREATE UNIQUE INDEX ON year.devices (n);
  CREATE INDEX ON year.devices (tenant, n);
  ANALYZE year.devices`;

/** Returns the tables of tenants and devices. */
export function fleetFillings(sizes: Sizes): Filling[] {
  const { tenants, devices, groups, others } = sizes;
  const series = (rows: number) => `generate_series(1, ${rows}) AS n`;
  const ofDevices = `year.devices AS d`;
  const some = Math.min(devices, others);
  return [
    {
      table: 'tenants',
      columns: 'tenant_id, name, namespace, rate_limit_per_minute, created_at',
      rows: `SELECT year.tenant(n), 'Tenant ' || n, 'kellet-tenant-' || n, 1000000000, now() - interval '1 year' FROM ${series(tenants)}`,
    },
    {
      table: 'profiles',
      columns: 'tenant_id, profile_id, namespace, resource_name, name, document',
      rows: `SELECT year.tenant(n), year.id('profile', n), 'kellet-tenant-' || n, 'sensor', 'sensor', '{"type": "sensor"}'::jsonb FROM ${series(tenants)}`,
    },
    {
      table: 'devices',
      columns: `tenant_id, device_id, name, hardware_id, profile_id, tags, status, last_seen, alive_at, offline_at, firmware_version,
        created_at, updated_at, deleted_at`,
      rows: `SELECT tenant_id, device_id, 'device ' || n, 'hw-' || md5(n::text), profile_id,
          jsonb_build_object('site', 'site-' || n % 1000), CASE WHEN n % 10 = 0 THEN 'offline' ELSE 'online' END,
          now() - n % 60 * interval '1 second', now() - n % 60 * interval '1 second', now() + interval '1 day', '1.' || n % 5 || '.0',
          now() - interval '1 year', now() - interval '1 day', CASE WHEN n % 500 = 0 THEN now() - interval '90 days' END FROM ${ofDevices}`,
    },
    {
      table: 'device_groups',
      columns: 'tenant_id, group_id, name, created_at',
      rows: `SELECT year.tenant(1 + n % ${tenants}), year.id('group', n), 'group ' || n, now() - interval '1 year' FROM ${series(groups)}`,
    },
    {
      table: 'device_group_members',
      columns: 'tenant_id, group_id, device_id',
      rows: `SELECT d.tenant_id, g.group_id, d.device_id FROM ${ofDevices} JOIN LATERAL (
          SELECT group_id FROM device_groups g WHERE g.tenant_id = d.tenant_id ORDER BY group_id OFFSET d.n % 3 LIMIT 1) AS g ON true
        WHERE n % 500 <> 0`,
    },
    {
      table: 'device_history',
      columns: 'tenant_id, device_id, time, kind, previous, current',
      rows: `SELECT tenant_id, device_id, ${within('h.n', some * 2)}, CASE WHEN h.n % 2 = 0 THEN 'status' ELSE 'firmware' END, 'a', 'b'
        FROM generate_series(1, ${some * 2}) AS h (n) JOIN ${ofDevices} ON d.n = 1 + h.n % ${devices}`,
    },
    {
      table: 'device_attributes',
      columns: 'tenant_id, device_id, scope, attributes',
      rows: `SELECT tenant_id, device_id, s.scope, '{"k": 1}'::jsonb FROM ${ofDevices}, (VALUES ('client'), ('shared')) AS s (scope)`,
    },
    {
      table: 'api_keys',
      columns: 'key_id, tenant_id, device_id, name, key_hash, prefix, last4, scopes, created_at, revoked_at',
      rows: `SELECT year.id('key', n), tenant_id, device_id, 'device', sha256(('key' || n)::bytea), 'sk_live_abcd', 'wxyz', '{}'::text[],
        now() - interval '1 year', CASE WHEN n % 50 = 0 THEN now() END FROM ${ofDevices}`,
    },
    {
      table: 'provision_keys',
      columns: 'key_hash, tenant_id, first_seen_at, used_at, used_by_hardware_id',
      rows: `SELECT sha256(('provision' || n)::bytea), tenant_id, now() - interval '1 year', now() - interval '1 year', 'hw-' || md5(n::text)
        FROM ${ofDevices} WHERE n <= ${some}`,
    },
    {
      table: 'mqtt_sessions',
      columns: 'tenant_id, device_id, client_id, connection_id, subscriptions, expires_at',
      rows: `SELECT tenant_id, device_id, device_id::text, gen_random_uuid(), '{}'::jsonb, now() + interval '1 day' FROM ${ofDevices} WHERE n % 2 = 0`,
    },
    {
      table: 'alarms',
      columns: `tenant_id, alarm_id, device_id, type, severity, status, count, first_at, last_at, cleared_at`,
      rows: `SELECT tenant_id, year.id('alarm', n, ${within('n', devices)}), device_id, 'hot', 'major', CASE WHEN n % 20 = 0 THEN 'active' ELSE 'cleared' END, 1,
        ${within('n', devices)}, ${within('n', devices)}, CASE WHEN n % 20 <> 0 THEN now() END FROM ${ofDevices} WHERE n <= ${some}`,
    },
    {
      table: 'telemetry_usage',
      columns: 'tenant_id, device_id, accepted, rejected, stored_bytes',
      rows: `SELECT tenant_id, device_id, 1000, 1, 100000 FROM ${ofDevices}`,
    },
    {
      table: 'users',
      columns: 'user_id, tenant_id, email, name, role, password_hash',
      rows: `SELECT year.id('user', n), year.tenant(1 + n % ${tenants}), 'user-' || n || '@example.com', 'User ' || n, 'viewer', '' FROM ${series(tenants * 10)}`,
    },
    {
      table: 'sessions',
      columns: 'session_id, tenant_id, user_id, user_agent, ip, created_at, last_used_at, expires_at, authenticated_at',
      rows: `SELECT year.id('session', n), year.tenant(1 + n % ${tenants}), year.id('user', 1 + n % ${tenants * 10}), 'browser', '192.0.2.1', now(), now(),
        now() + interval '30 days' * n / ${some}, now() FROM ${series(some)}`,
    },
    {
      table: 'refresh_tokens',
      columns: 'token_hash, session_id, expires_at',
      rows: `SELECT sha256(('refresh' || n)::bytea), year.id('session', n), now() + interval '30 days' FROM ${series(some)}`,
    },
    {
      table: 'user_groups',
      columns: 'tenant_id, group_id, name, scopes, device_group_ids',
      rows: `SELECT year.tenant(1 + n % ${tenants}), year.id('users', n), 'users ' || n, '{}'::text[], '{}'::uuid[] FROM ${series(tenants * 5)}`,
    },
    {
      table: 'user_group_members',
      columns: 'tenant_id, group_id, user_id',
      rows: `SELECT year.tenant(1 + n % ${tenants}), year.id('users', n), year.id('user', n) FROM ${series(tenants * 5)}`,
    },
    {
      table: 'customers',
      columns: 'tenant_id, customer_id, name',
      rows: `SELECT year.tenant(1 + n % ${tenants}), year.id('customer', n), 'customer ' || n FROM ${series(groups)}`,
    },
    {
      table: 'assets',
      columns: 'tenant_id, asset_id, name, type',
      rows: `SELECT year.tenant(1 + n % ${tenants}), year.id('asset', n), 'asset ' || n, 'site' FROM ${series(groups)}`,
    },
    {
      table: 'login_failures',
      columns: 'subject, failures, last_failure_at, blocked_until, email, address, tenant_ids',
      rows: `SELECT sha256(('failure' || n)::bytea), 1, now(), now(), 'user-' || n || '@example.com', '192.0.2.1', ARRAY[year.tenant(1 + n % ${tenants})]
        FROM ${series(Math.min(some, 100_000))}`,
    },
    {
      table: 'rules',
      columns: 'tenant_id, rule_id, name, expression, alarm_type, actions',
      rows: `SELECT year.tenant(n), year.id('rule', n), 'hot', 'temperature > 100.0', 'hot', '[]'::jsonb FROM ${series(tenants)}`,
    },
    {
      table: 'rule_states',
      columns: 'tenant_id, device_id, rule_id, version',
      rows: `SELECT tenant_id, device_id, year.id('rule', tenant), 1 FROM ${ofDevices}`,
    },
    {
      table: 'rule_actions',
      columns: 'tenant_id, action_id, rule_id, device_id, action, event, next_at, dead_at',
      rows: `SELECT tenant_id, year.id('action', n), year.id('rule', tenant), device_id, '{}'::jsonb, '{}', now(), now() FROM ${ofDevices} WHERE n <= ${some}`,
    },
    {
      table: 'device_chain',
      columns: 'tenant_id, device_id, head, length',
      rows: `SELECT tenant_id, device_id, sha256(n::text::bytea), 1 FROM ${ofDevices} WHERE n % 2 = 1`,
    },
    {
      table: 'telemetry_segments',
      columns: 'writer_id, state, rows, least_time, greatest_time, opened_at, sealed_at, indexed_at, has_leaves',
      rows: `SELECT year.id('writer', n / 100), 'cold', 1, 1, 2, now() - interval '1 year', now() - interval '1 year', now() - interval '1 year', false
        FROM ${series(Math.min(some, 50_000))}`,
    },
    {
      table: 'rule_last_points',
      columns: 'tenant_id, device_id, time, payload',
      rows: `SELECT tenant_id, device_id, 1, '{}' FROM ${ofDevices}`,
    },
  ];
}

/** Statements that count the devices, as triggers would have done. */
export const countFleet = [
  `INSERT INTO device_counts (tenant_id, group_id, profile_id, status, firmware_version, devices)
   SELECT tenant_id, kellet_no_id(), coalesce(profile_id, kellet_no_id()), status, firmware_version, count(*)
   FROM devices WHERE deleted_at IS NULL GROUP BY 1, 2, 3, 4, 5
   UNION ALL
   SELECT tenant_id, group_id, coalesce(profile_id, kellet_no_id()), status, firmware_version, count(*)
   FROM devices JOIN device_group_members USING (tenant_id, device_id) WHERE deleted_at IS NULL GROUP BY 1, 2, 3, 4, 5`,
  `INSERT INTO profile_devices (tenant_id, profile_id, part, devices)
   SELECT tenant_id, profile_id, 0, count(*) FROM devices WHERE deleted_at IS NULL AND profile_id IS NOT NULL GROUP BY 1, 2`,
];

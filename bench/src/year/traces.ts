// Rows that updates, commands and callers have added to a populated installation.
import type { Filling } from './fleet.ts';
import type { Sizes } from './sizes.ts';

/** KELLET_ROLLOUT_RETENTION_DAYS by default. */
const rolloutDays = 180;

/** Returns the tables of rollouts, commands and what follows from requests. */
export function traceFillings(sizes: Sizes): Filling[] {
  const { tenants, devices, rollouts, activeRollouts, rolloutDevices, commands, others } = sizes;
  const series = (rows: number) => `generate_series(1, ${rows}) AS n`;
  const within = (n: string, of: number) => `now() - interval '1 year' * (1 - ${n}::float8 / ${of})`;
  // Every second rollout is one of the largest tenant.
  const tenantOf = (n: string) => `CASE WHEN ${n} % 2 = 0 THEN 1 ELSE 2 + ${n} / 2 % ${tenants - 1} END`;
  const isActive = (n: string) => `${n} > ${rollouts - activeRollouts}`;
  // Of the rollouts that completed before, the devices are deleted.
  const firstWithDevices = Math.floor(rollouts * (1 - rolloutDays / 365)) + 1;
  return [
    {
      table: 'ota_packages',
      columns: `tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature, size_bytes, compatibility, release_notes,
        status, checksum_verified, message, deleted_at`,
      rows: `SELECT year.tenant(${tenantOf('n')}), year.id('package', n), 'package-' || n, 'package-' || n, 'fw', '1.' || n || '.0', '', sha256(('package' || n)::bytea), '',
        1, '{}'::jsonb, '', 'available', true, '', now() FROM ${series(rollouts)}`,
    },
    {
      table: 'ota_rollouts',
      columns: `tenant_id, rollout_id, name, namespace, display_name, package_id, profile_id, spec, phase, outcome, pause_conditions,
        eligible, scheduled, succeeded, cohort_ready, has_devices, created_at, updated_at`,
      rows: `SELECT year.tenant(t), year.id('rollout', n), 'rollout-' || n, 'kellet-tenant-' || t, 'rollout-' || n, year.id('package', n), year.id('profile', t),
        '{"rollout": {"percentage": 100}}'::jsonb, CASE WHEN ${isActive('n')} THEN 'paused' ELSE 'completed' END,
        CASE WHEN ${isActive('n')} THEN '' ELSE 'succeeded' END, '[]'::jsonb, ${rolloutDevices}, ${rolloutDevices}, ${rolloutDevices}, true,
        n >= ${firstWithDevices},
        ${within('n', rollouts)}, ${within('n', rollouts)}
        FROM ${series(rollouts)}, LATERAL (SELECT ${tenantOf('n')} AS t) AS of`,
    },
    {
      table: 'ota_rollout_devices',
      columns: `tenant_id, rollout_id, device_id, state, stage_percent, firmware_version, correlation_id, updated_at`,
      rows: `SELECT d.tenant_id, year.id('rollout', r.n), d.device_id, CASE WHEN ${isActive('r.n')} AND place % 10 = 0 THEN 'sent' ELSE 'successful' END, 100,
        '1.0.0', gen_random_uuid(), ${within('r.n', rollouts)}
        FROM generate_series(${firstWithDevices}, ${rollouts}) AS r (n), LATERAL (SELECT ${tenantOf('r.n')} AS t) AS of,
          LATERAL (SELECT *, row_number() OVER () AS place FROM year.devices WHERE tenant = t AND n % 500 <> 0 ORDER BY n LIMIT ${rolloutDevices}) AS d`,
    },
    {
      table: 'ota_rollout_cohort',
      columns: 'tenant_id, rollout_id, rank, device_id',
      rows: `SELECT d.tenant_id, year.id('rollout', r.n), sha256((r.n || '/' || d.n)::bytea), d.device_id
        FROM generate_series(${rollouts - activeRollouts + 1}, ${rollouts}) AS r (n), LATERAL (SELECT ${tenantOf('r.n')} AS t) AS of,
          LATERAL (SELECT * FROM year.devices WHERE tenant = t AND n % 500 <> 0 ORDER BY n LIMIT ${rolloutDevices * 10}) AS d`,
    },
    {
      table: 'ota_assignments',
      columns: 'tenant_id, device_id, slot, package_id, rollout_id',
      rows: `SELECT tenant_id, device_id, 'fw', year.id('package', 2), year.id('rollout', 2) FROM year.devices WHERE tenant = 1`,
    },
    {
      table: 'device_commands',
      columns: `tenant_id, correlation_id, device_id, method, params, status, response, persistent, attempts, created_at, sent_at,
        finished_at, expires_at`,
      rows: `SELECT tenant_id, year.id('command', c.n), device_id, 'reboot', '{}'::jsonb,
        CASE WHEN c.n % 1000 = 0 THEN 'queued' ELSE 'successful' END, '{}'::jsonb, true, 1, at, at, CASE WHEN c.n % 1000 <> 0 THEN at END,
        at + interval '40 days'
        FROM generate_series(1, ${commands}) AS c (n) JOIN year.devices AS d ON d.n = 1 + c.n % ${devices},
          LATERAL (SELECT now() - interval '29 days' * (1 - c.n::float8 / ${commands}) AS at) AS times`,
    },
    {
      table: 'telemetry_idempotency',
      columns: 'tenant_id, credential_hash, idempotency_key, request_hash, response, created_at',
      rows: `SELECT year.tenant(1 + n % ${tenants}), md5(n::text), n::text, md5(n::text), '{}', now() - interval '1 day' * (1 - n::float8 / ${others}) FROM ${series(others)}`,
    },
    {
      table: 'webhooks',
      columns: 'tenant_id, webhook_id, url, secret, events',
      rows: `SELECT year.tenant(n), year.id('webhook', n), 'https://example.com', '', '{}'::text[] FROM ${series(tenants)}`,
    },
    {
      table: 'webhook_deliveries',
      columns: 'tenant_id, webhook_id, event_id, subject, event, status, next_at, finished_at',
      rows: `SELECT year.tenant(t), year.id('webhook', t), year.id('delivery', n), 'devices.updated', '{}', CASE WHEN n % 100 = 0 THEN 'pending' ELSE 'delivered' END,
        now() + interval '1 day', CASE WHEN n % 100 <> 0 THEN now() END FROM ${series(others)}, LATERAL (SELECT 1 + n % ${tenants} AS t) AS of`,
    },
    {
      table: 'arc_callbacks',
      columns: 'callback_id, body, received_at, published_at',
      rows: `SELECT gen_random_uuid(), '{}'::bytea, at, CASE WHEN n % 1000 <> 0 THEN at END
        FROM ${series(others)}, LATERAL (SELECT now() - interval '7 days' * (1 - n::float8 / ${others}) AS at) AS times`,
    },
    {
      table: 'ota_results',
      columns: 'tenant_id, result_id, rollout_id, device_id, time, payload, data_hash, batch_id, leaf_index',
      rows: `SELECT tenant_id, year.id('result', s.n, ${within('s.n', others)}), year.id('rollout', 1), device_id, s.n, '{}', sha256(s.n::text::bytea), gen_random_uuid(), 0
        FROM generate_series(1, ${others}) AS s (n) JOIN year.devices AS d ON d.n = 1 + s.n % ${devices}`,
    },
    {
      table: 'resource_intents',
      columns: 'tenant_id, intent_id, kind, namespace, name, state, deadline, created_at, settled_at',
      rows: `SELECT year.tenant(1 + n % ${tenants}), year.id('intent', n), 'OtaRollout', 'x', n::text, 'active', now(), now(), now() FROM ${series(Math.min(others, 50_000))}`,
    },
  ];
}

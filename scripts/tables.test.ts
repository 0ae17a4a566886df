// Checks that each table has one writer, and that SQL is only in stores: a few named files of a service.
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';
import { type Literal, literalsOf, sources } from './testing/literals.ts';

const root = path.dirname(import.meta.dirname);

/** The tables that only this folder of apiserver/src and its subfolders write. */
const owners: Readonly<Record<string, readonly string[]>> = {
  auth: [
    ...[
      'api_keys',
      'device_authorities',
      'device_certificates',
      'login_failures',
      'pending_sign_ins',
      'recovery_codes',
      'refresh_tokens',
      'second_factors',
    ],
    ...['sessions', 'signing_keys', 'sso_identities', 'sso_providers', 'sso_returns'],
    ...['user_group_members', 'user_groups', 'users', 'webauthn_credentials'],
  ],
  'chain-anchor': ['anchor_batches', 'anchor_usage', 'block_headers', 'chain_transactions', 'wallet_outputs'],
  control: ['applied_versions', 'resource_intents'],
  'device-link/attributes': ['device_attributes'],
  'device-link/commands': ['device_commands'],
  'device-link/ota/assignments': ['ota_assignments'],
  'device-link/ota/artifacts': ['artifact_chunks', 'artifact_parts', 'artifact_remains', 'artifacts'],
  'device-link/ota/packages': ['ota_packages'],
  'device-link/ota/rollouts': ['ota_results', 'ota_rollout_cohort', 'ota_rollout_devices', 'ota_rollouts'],
  'device-link/provisioning': ['profiles', 'provision_keys', 'provisioning_claims', 'provisioning_templates'],
  'device-registry': [
    ...['device_count_changes', 'device_counts', 'device_group_checks', 'device_group_members'],
    ...['device_group_walks', 'device_groups', 'devices', 'profile_devices'],
  ],
  'device-registry/alarms': ['alarms'],
  'device-registry/entities': ['assets', 'customers', 'entity_views'],
  'device-registry/history': ['device_history'],
  'gateway/http': ['arc_callbacks'],
  'gateway/rate-limit': ['rate_windows'],
  mqtt: ['mqtt_sessions'],
  'platform/audit': ['audit_anchors', 'audit_events', 'audit_heads', 'audit_pending'],
  'platform/database': ['kept_sums', 'schema_migrations'],
  'platform/events': ['outbox', 'outbox_set_aside'],
  'rules-engine': [
    ...['rule_actions', 'rule_last_points', 'rule_points', 'rule_reports', 'rule_revisions', 'rule_states', 'rules'],
  ],
  'telemetry/cold': ['cold_attempts', 'cold_dates', 'cold_files'],
  'telemetry/read': ['telemetry_days', 'telemetry_latest', 'telemetry_tenant_usage', 'telemetry_usage'],
  telemetry: [
    ...['leaf_blocks', 'leaf_index', 'leaf_runs', 'proven_leaves', 'telemetry_idempotency', 'telemetry_quotas'],
    ...['telemetry_tails', 'unpacked_leaves', 'withdrawn_proofs'],
  ],
  'telemetry/write': [
    ...['device_chain', 'leaf_index_', 'telemetry_points', 'telemetry_segment_', 'telemetry_segments'],
    ...['open_batch_leaves', 'open_batch_segments', 'telemetry_tenant_segments', 'telemetry_writers'],
  ],
  'tenant-data': ['deleted_devices'],
  tenants: ['tenants'],
  webhooks: ['webhook_deliveries', 'webhooks'],
};

/** Exceptions: statements on tables of another folder, in one transaction with the folder's own. */
const granted: readonly string[] = [
  'telemetry/write/flush.ts anchor_batches',
  'telemetry/write/flush.ts rule_points',
  'telemetry/write/writer-closing.ts anchor_batches',
];

/** The files with SQL, whose functions the other files of a service call. */
const stores: readonly string[] = [
  'auth/accounts/account-store.ts',
  'auth/certificates/certificate-store.ts',
  'auth/api-keys/api-keys.ts',
  'auth/credentials/credential-store.ts',
  'auth/device-credentials/device-keys.ts',
  'auth/api-keys/key-limits.ts',
  'auth/access-tokens/key-ring.ts',
  'auth/second-factors/factor-store.ts',
  'auth/second-factors/pending-sign-ins.ts',
  'auth/sign-in/login-throttle.ts',
  'auth/sign-in/session-list.ts',
  'auth/sign-in/sessions.ts',
  'auth/sso/provider-store.ts',
  'auth/sso/sign-outs.ts',
  'auth/users/group-store.ts',
  'auth/users/users.ts',
  'chain-anchor/batches.ts',
  'chain-anchor/headers/header-chain.ts',
  'chain-anchor/transactions/anchor-store.ts',
  'chain-anchor/wallet/wallet-store.ts',
  'control/applied-versions.ts',
  'control/intents.ts',
  'device-link/attributes/attribute-store.ts',
  'device-link/commands/attributes-changed.ts',
  'device-link/commands/command-sweep.ts',
  'device-link/commands/commands.ts',
  'device-link/ota/assignments/assignment-store.ts',
  'device-link/ota/artifacts/artifact-store.ts',
  'device-link/ota/artifacts/artifact-sweep-store.ts',
  'device-link/ota/packages/package-store.ts',
  'device-link/ota/packages/signature-policy-store.ts',
  'device-link/ota/rollouts/stores/cohort-store.ts',
  'device-link/ota/rollouts/planning/fleet-summary.ts',
  'device-link/ota/rollouts/stores/membership-store.ts',
  'device-link/ota/rollouts/stores/result-store.ts',
  'device-link/ota/rollouts/stores/rollout-device-store.ts',
  'device-link/ota/rollouts/stores/rollout-store.ts',
  'device-link/ota/rollouts/stores/update-time-store.ts',
  'device-link/provisioning/claim-store.ts',
  'device-link/provisioning/profile-store.ts',
  'device-link/provisioning/template-store.ts',
  'device-link/rpc/delivery.ts',
  'device-registry/alarms/alarm-store.ts',
  'device-registry/devices/device-counts.ts',
  'device-registry/devices/device-filters.ts',
  'device-registry/devices/device-search.ts',
  'device-registry/devices/devices.ts',
  'device-registry/devices/directory.ts',
  'device-registry/devices/group-members.ts',
  'device-registry/entities/assets.ts',
  'device-registry/entities/customers.ts',
  'device-registry/entities/views.ts',
  'device-registry/fleet/bulk-store.ts',
  'device-registry/groups/group-store.ts',
  'device-registry/groups/query-group-store.ts',
  'device-registry/history/history-store.ts',
  'device-registry/import-export/import-store.ts',
  'device-registry/liveness/signs-of-life.ts',
  'device-registry/liveness/silent-devices.ts',
  'fsck/check-artifacts.ts',
  'fsck/check-batches.ts',
  'fsck/check-coins.ts',
  'fsck/check-counts.ts',
  'fsck/check-latest.ts',
  'fsck/check-leaves.ts',
  'fsck/check-points.ts',
  'fsck/check-transactions.ts',
  'fsck/check.ts',
  'gateway/http/callbacks.ts',
  'gateway/rate-limit/postgres-rate-counter.ts',
  'mqtt/session-store.ts',
  'platform/audit/audit-store.ts',
  'platform/database/migrate.ts',
  'platform/events/outbox-command.ts',
  'platform/events/outbox.ts',
  'platform/visibility.ts',
  'policies/tenant-reader.ts',
  'rules-engine/actions/action-queue.ts',
  'rules-engine/evaluation/state-store.ts',
  'rules-engine/rules/rule-store.ts',
  'telemetry/cold/cold-file-store.ts',
  'telemetry/ingest/idempotency.ts',
  'telemetry/ingest/point-quota.ts',
  'telemetry/ingest/update-results.ts',
  'telemetry/leaves/leaf-count.ts',
  'telemetry/leaves/leaf-store.ts',
  'telemetry/leaves/packing.ts',
  'telemetry/read/batch-points.ts',
  'telemetry/read/history.ts',
  'telemetry/read/hot-points.ts',
  'telemetry/read/latest-rows.ts',
  'telemetry/read/hot-tails.ts',
  'telemetry/read/usage.ts',
  'telemetry/write/flush.ts',
  'telemetry/write/group-commit.ts',
  'telemetry/write/idempotency-keys.ts',
  'telemetry/write/open-batch-leaves.ts',
  'telemetry/write/rule-feed.ts',
  'telemetry/write/segments.ts',
  'telemetry/write/tenant-segments.ts',
  'telemetry/write/writer-closing.ts',
  'telemetry/write/writer-session.ts',
  'tenant-data/deleted-devices.ts',
  'tenant-data/tenant-export.ts',
  'tenant-data/transfer-format.ts',
  'tenants/tenant-store.ts',
  'verifier/proof-store.ts',
  'webhooks/webhook-store.ts',
];

const ownerOf = new Map(Object.entries(owners).flatMap(([folder, tables]) => tables.map((table) => [table, folder])));
const tables = [...ownerOf.keys()].join('|');

/** Returns the tables that follow one of these words, such as `FROM`. */
const tablesAfter = (words: string, text: string): string[] =>
  [...text.matchAll(new RegExp(`\\b(?:${words})\\s+(?:ONLY\\s+)?((?:\\w|\\$\\{\\w+\\})+)`, 'g'))].map((match) =>
    match[1]!.replace(/_\$\{\w+\}$/, '_'),
  );

describe('the tables', () => {
  let literals: readonly Literal[];
  before(() => {
    literals = literalsOf(sources('apiserver/src')).map(({ file, text }) => ({
      file: file.slice('apiserver/src/'.length),
      text,
    }));
  });
  const isWithin = (file: string, folder: string) => file.startsWith(`${folder}/`);

  it('each have one owner in the list', () => {
    const sql = globSync('apiserver/migrations/*.sql', { cwd: root }).map((file) =>
      readFileSync(path.join(root, file), 'utf8'),
    );
    const made = sql.flatMap((text) => tablesAfter('CREATE (?:UNLOGGED )?TABLE', text));
    // Emptied and no longer used; and partitions, which are made as points arrive.
    const expected = new Set([...made, 'schema_migrations', 'telemetry_segment_', 'leaf_index_']);
    expected.delete('artifact_upload_pieces');
    expect([...ownerOf.keys()].sort()).to.deep.equal([...expected].sort());
  });

  it('are written only by their owners', () => {
    const foreign = literals.flatMap(({ file, text }) =>
      tablesAfter('INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|COPY', text)
        .filter((table) => ownerOf.has(table) && !isWithin(file, ownerOf.get(table)!))
        .map((table) => `${file} ${table}`),
    );
    expect([...new Set(foreign)].sort()).to.deep.equal(granted);
  });

  it('are named only in stores', () => {
    const named = new RegExp(`\\b(?:FROM|JOIN|INTO|UPDATE|COPY|TABLE)\\s+(?:ONLY\\s+)?(?:${tables})`);
    const found = literals.filter(({ text }) => named.test(text)).map(({ file }) => file);
    expect([...new Set(found)].sort()).to.deep.equal([...stores].sort());
  });

  it('include tenants, which all others read through policies/tenant-reader.ts', () => {
    const readers = literals.filter(({ text }) => /\b(FROM|JOIN)\s+tenants\b/.test(text)).map(({ file }) => file);
    expect([...new Set(readers)].sort()).to.deep.equal(['policies/tenant-reader.ts', 'tenants/tenant-store.ts']);
  });
});

// What `make day` expects of each table at the end: how old its oldest row may be, by the settings with which the apiserver runs.

/** Settings of the apiserver: retentions so short that a day matters. */
export const retentionSettings = {
  KELLET_COMMAND_RETENTION_DAYS: '2',
  KELLET_TRANSACTION_RETENTION_DAYS: '1',
  KELLET_ROLLOUT_RETENTION_DAYS: '1',
  KELLET_DEVICE_HISTORY_DAYS: '2',
  KELLET_AUDIT_RETENTION_DAYS: '2',
} as const;

const day = 24;
const daysOf = (setting: keyof typeof retentionSettings): number => Number(retentionSettings[setting]);

/** A limit: no row that meets the condition may be older than so many hours by that column. */
export interface RetentionLimit {
  readonly table: string;
  readonly column: string;
  readonly hours: number;
  readonly where?: string;
  /** Where the limit comes from. */
  readonly setting: string;
}

/** The limits, without the time between two sweeps. */
export const retentionLimits: readonly RetentionLimit[] = [
  {
    ...{ table: 'device_commands', column: 'finished_at', hours: daysOf('KELLET_COMMAND_RETENTION_DAYS') * day },
    setting: 'KELLET_COMMAND_RETENTION_DAYS',
  },
  {
    ...{ table: 'device_commands', column: 'expires_at', hours: 0, where: `status = 'queued'` },
    setting: 'their own time',
  },
  {
    ...{ table: 'chain_transactions', column: 'created_at', hours: daysOf('KELLET_TRANSACTION_RETENTION_DAYS') * day },
    ...{ where: `state = 'final' AND purpose = 'anchor'`, setting: 'KELLET_TRANSACTION_RETENTION_DAYS' },
  },
  {
    ...{ table: 'ota_rollouts', column: 'updated_at', hours: daysOf('KELLET_ROLLOUT_RETENTION_DAYS') * day },
    ...{ where: `phase = 'completed' AND has_devices`, setting: 'KELLET_ROLLOUT_RETENTION_DAYS' },
  },
  {
    ...{ table: 'device_history', column: 'time', hours: daysOf('KELLET_DEVICE_HISTORY_DAYS') * day },
    setting: 'KELLET_DEVICE_HISTORY_DAYS',
  },
  {
    ...{ table: 'audit_events', column: 'time', hours: daysOf('KELLET_AUDIT_RETENTION_DAYS') * day },
    setting: 'KELLET_AUDIT_RETENTION_DAYS',
  },
  { table: 'telemetry_idempotency', column: 'created_at', hours: day, setting: 'a day' },
  { table: 'arc_callbacks', column: 'published_at', hours: 7 * day, setting: '7 days' },
  { table: 'webhook_deliveries', column: 'finished_at', hours: 30 * day, setting: '30 days' },
  { table: 'rule_actions', column: 'dead_at', hours: 30 * day, setting: '30 days' },
  { table: 'sessions', column: 'expires_at', hours: day, setting: 'a day after they expire' },
  { table: 'sessions', column: 'revoked_at', hours: 1, setting: 'an hour after they were ended' },
  {
    ...{ table: 'outbox', column: 'not_before', hours: 0, where: 'not_before IS NOT NULL' },
    setting: 'until the broker has them',
  },
];

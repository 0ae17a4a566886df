// The notification channels of PostgreSQL, one list. The payload's form stands beside each name. Hints are sent after the commit
// (Transaction.hint), and may be lost; where they have a payload, an empty one says that some were dropped. On the other channels,
// the transaction notifies.

/** A hint: wakes the outbox relay; no payload. */
export const outboxChannel = 'kellet_outbox';

/**
 * Revoked credentials: the hex SHA-256 of a credential, or `session:<session id>` for every access token of a session.
 * Changes to a whole tenant are announced on {@link tenantChannel}.
 */
export const revocationChannel = 'kellet_revocations';

/** Tenants whose settings changed: the tenant's id. */
export const tenantChannel = 'kellet_tenants';

/** Changed profiles: `tenant/profile_id`. */
export const profileChannel = 'kellet_profiles';

/** Changed devices: `tenant/device`. */
export const deviceChannel = 'kellet_devices';

/** Streams that devices have opened: `tenant/device/epoch`. Those with a lower epoch end. */
export const streamChannel = 'kellet_streams';

/** Device groups whose members changed: `tenant/group`. */
export const groupChannel = 'kellet_groups';

/** Devices that a process found silent: `tenant/device`. */
export const offlineChannel = 'kellet_devices_offline';

/**
 * Hints: wakes long polls and streams of commands: `tenant/device`; `tenant/rollout` when commands of a rollout may no longer
 * be held back; or a correlation id.
 */
export const commandsChannel = 'kellet_commands';

/** A process that takes points has started a writer; no payload. */
export const writerChannel = 'kellet_writers';

/** Asks processes that take points to complete their segments and to write what follows from their points; no payload. */
export const sealChannel = 'kellet_seal';

/** Asks processes that take points to seal the open batches of a tenant: its id. */
export const sealTenantChannel = 'kellet_seal_tenant';

/** A hint: there are sealed anchor batches; no payload. */
export const batchChannel = 'kellet_batches';

/** A hint: wakes the processes that schedule devices and do the other work of rollouts; no payload. */
export const rolloutWorkChannel = 'kellet_rollout_work';

/** A hint: points wait for the evaluation of rules; no payload. */
export const rulePointsChannel = 'kellet_rule_points';

/** A hint: events of the audit log wait to be chained; no payload. */
export const auditChannel = 'kellet_audit';

/** A hint: results of updates wait to become points; no payload. */
export const resultsChannel = 'kellet_results';

/** Resources whose observed state changed: a Change as JSON (control/changes.ts). */
export const controlChannel = 'kellet_control';

// The keys of PostgreSQL's advisory locks, one list. Migrations and old releases use the same numbers, so they never change.
// telemetry_writer_lock (migrations/0006_telemetry.sql) derives the key of each writer's session lock.
import type { Transaction } from './database.ts';

/** Takes a lock until the transaction ends unless another holds it, and reports whether it did. */
export async function tryLock(tx: Transaction, key: number | string): Promise<boolean> {
  const { rows } = await tx.query<{ locked: boolean }>(
    `SELECT pg_try_advisory_xact_lock(${typeof key === 'number' ? '$1' : 'hashtextextended($1, 0)'}) AS locked`,
    [key],
  );
  return rows[0]!.locked;
}

/** Waits for a lock and holds it until the transaction ends. */
export async function holdLock(tx: Transaction, key: number | string): Promise<void> {
  await tx.query(`SELECT pg_advisory_xact_lock(${typeof key === 'number' ? '$1' : 'hashtextextended($1, 0)'})`, [key]);
}

/** Held by the process that migrates the schema, for its session. */
export const migrationLock = 6452817301;

/** Held by the process that relays the outbox, for a transaction. */
export const outboxLock = 6452817302;

/** Held by the process that takes silent devices offline, for a transaction. */
export const livenessLock = 6452817303;

/** Held by the process that anchors the results of updates, for a transaction. */
export const resultsLock = 6452817304;

/** Held by the process that maintains cold storage, for a session. */
export const coldLock = 6452817305;

/** Held by the process that chains audit events, for a transaction. */
export const auditLock = 6452817306;

/** Held by the process that anchors the heads of audit logs, for a transaction. */
export const auditAnchorsLock = 6452817307;

/** Held by the process that purges deleted tenants, for a session. */
export const purgeLock = 6452817308;

/** Serialises changes of block_headers. */
export const headersLock = 6452817310;

/** Held by the process that maintains the wallet, for a transaction. */
export const walletLock = 6452817311;

/** Held by the process that packs leaves, for a transaction. */
export const leavesLock = 6452817312;

/** Held by the process that merges packed leaves, for a transaction. */
export const leafMergesLock = 6452817313;

// Keys of text, see holdLock.

/** Serialises additions to a tenant's devices against its quota. */
export const tenantDevicesLock = (tenantId: string): string => `devices of ${tenantId}`;

/** Serialises additions to what a tenant or a device may have a limited number of (number-limits.ts). */
export const numberLock = (what: string, owner: readonly (string | undefined)[]): string =>
  `number of ${what} of ${owner.join('/')}`;

/** Serialises additions to a tenant's artifacts against its quota. */
export const tenantArtifactsLock = (tenantId: string): string => `artifacts of ${tenantId}`;

/**
 * Locks the rollouts of a profile. Creating a rollout holds it exclusively; a change to the profile's devices shares
 * it, so that a rollout and a change that do not see each other's rows never cross.
 */
export const profileRolloutsLock = (tenantId: string, profileId: string): string => `rollout/${tenantId}/${profileId}`;

/** Held by the transaction that evaluates points of a tenant. */
export const ruleEvaluationLock = (tenantId: string): string => `rules of ${tenantId}`;

/** Serialises rotations of the keys that sign access tokens. */
export const signingKeysLock = 'signing keys';

/** Serialises the ends of sessions by a provider for single sign-on, and the beginnings of sessions there. Before accounts. */
export const providerSessionsLock = (tenantId: string, provider: string): string =>
  `sessions at ${tenantId}/${provider}`;

/** Serialises changes to a tenant's trees of assets. */
export const assetTreesLock = (tenantId: string): string => `assets of ${tenantId}`;

/** Serialises additions to a tenant's certificate authorities for devices. */
export const tenantAuthorityLock = (tenantId: string): string => `device authorities of ${tenantId}`;

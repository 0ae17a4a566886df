// Purges the data of deleted tenants: resources, events, objects of the stores, and the rows of every table. Each step is
// a small transaction or can be repeated, so that an interrupted purge continues where it stopped. Only the tenant's id
// stays.
import { endLeasesOfTenant } from '../chain-anchor/wallet/wallet-store.ts';
import { notifyChanged } from '../control/changes.ts';
import type { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import { storesOfTenant } from '../device-link/ota/artifacts/artifact-sweep-store.ts';
import { systemFacts } from '../platform/audit/audit-event.ts';
import type { AuditTrail } from '../platform/audit/audit-trail.ts';
import { sleep } from '../platform/clock.ts';
import { purgeLock } from '../platform/database/advisory-locks.ts';
import { sealTenantChannel } from '../platform/database/channels.ts';
import type { Database } from '../platform/database/database.ts';
import { alone, whenAlone } from '../platform/database/session-lock.ts';
import type { Broker } from '../platform/events/broker.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { countColdFiles } from '../telemetry/cold/cold-file-store.ts';
import type { ColdStorage } from '../telemetry/cold/cold-storage.ts';
import { removeTenantFiles } from '../telemetry/cold/cold-work.ts';
import { hasOpenBatches } from '../telemetry/write/writer-closing.ts';
import { beginPurge, dueForPurge, markPurged } from '../tenants/tenant-store.ts';
import type { ResourcePurge } from './resource-purge.ts';
import { deleteTenantRows, remainingTables } from './row-purge.ts';
import { settleMilliseconds as defaultSettle } from './standstill.ts';

/** What a purge needs. */
export interface PurgeParts {
  readonly database: Database;
  readonly logger: Logger;
  readonly audit: Pick<AuditTrail, 'within'>;
  readonly resources: ResourcePurge;
  readonly artifacts: ArtifactStores;
  readonly cold: ColdStorage;
  readonly broker: Pick<Broker, 'purgeTenant'>;
  /** Called with the rows deleted from a table by one transaction. */
  readonly deleted?: (table: string, rows: number) => void;
  /** Called when a step begins. */
  readonly step?: (step: string) => void;
  /** How long after its deletion earlier requests may still write; for tests. */
  readonly settleMilliseconds?: number;
}

/** How long to wait for batches to be sealed before asking again. */
const sealMilliseconds = 500;

/** Deleting rows can add others, which count what was deleted. */
const maximumPasses = 10;

const lock = { key: purgeLock, name: 'purge' };

/** Why a tenant is not purged. */
export class NotPurgedError extends Error {}

/** Purges tenants, one at a time in all processes. */
export class Purge {
  private readonly parts: PurgeParts;

  constructor(parts: PurgeParts) {
    this.parts = parts;
  }

  /** Purges the tenants that are due; one that cannot be purged yet does not delay others. Returns whether any was purged. */
  async purgeDue(signal: AbortSignal): Promise<boolean> {
    const { database, logger } = this.parts;
    let hasPurged = false;
    const interrupted: string[] = [];
    const due = () => database.systemRead((tx) => dueForPurge(tx, interrupted));
    // The lock costs a connection of its own.
    if ((await due()).length === 0) return false;
    await alone(database, lock, async () => {
      for (let tenants = await due(); tenants.length > 0; tenants = await due()) {
        for (const tenantId of tenants) {
          if (signal.aborted) return;
          logger.info({ tenant: tenantId }, 'purging the data of a deleted tenant');
          try {
            const rows = await this.purgeAlone(tenantId, false, signal);
            logger.info({ tenant: tenantId, rows }, 'the data of a deleted tenant is purged');
            hasPurged = true;
          } catch (error) {
            interrupted.push(tenantId);
            if (!signal.aborted) logger.warn({ err: error, tenant: tenantId }, 'the purge of a tenant is interrupted');
          }
        }
      }
    });
    return hasPurged;
  }

  /**
   * Purges one deleted tenant, and returns the number of deleted rows. `now`: also before its purge is due. Throws
   * NotPurgedError if there is no such tenant, or if it is not deleted or not due.
   */
  async purgeTenant(tenantId: string, now: boolean, signal: AbortSignal): Promise<number> {
    const waiting = (): void => this.parts.step?.('waiting for another process that purges');
    return whenAlone(this.parts.database, lock, () => this.purgeAlone(tenantId, now, signal), { waiting, signal });
  }

  private async purgeAlone(tenantId: string, now: boolean, signal: AbortSignal): Promise<number> {
    const { database, logger, audit, resources, artifacts, broker, step } = this.parts;
    const namespace = await this.begin(tenantId, now, signal);
    step?.('deleting its Kubernetes resources');
    // A namespace that only has the name of the tenant's has none of them.
    if (namespace !== null) await resources.deleteResources(namespace);
    await database.system((tx) => endLeasesOfTenant(tx, tenantId));
    let rows = 0;
    for (let pass = 1; ; pass += 1) {
      signal.throwIfAborted();
      step?.(`deleting its data, pass ${pass}`);
      const stores = await database.systemRead((tx) => storesOfTenant(tx, tenantId));
      for (const store of new Set([...stores, artifacts.current])) {
        if (store !== '') await artifacts.at(store).remove(tenantId);
      }
      rows += await this.deletePass(tenantId, signal);
      const left = await remainingTables(database, tenantId);
      if (left.length === 0) break;
      if (pass === maximumPasses) throw new Error(`rows of the tenant reappear in ${left.join(', ')}`);
    }
    await broker.purgeTenant(tenantId).catch((error: unknown) => {
      logger.warn({ err: error, tenant: tenantId }, 'events of a purged tenant stay in the broker for up to a week');
    });
    step?.('deleting its Tenant resource');
    await resources.deleteTenant(tenantId);
    await database.system(async (tx) => {
      await markPurged(tx, tenantId);
      await audit.within(tx, systemFacts('tenant.purged', { kind: 'tenant', id: tenantId }));
      // The operator removes the finalizer of a Tenant that was deleted with kubectl.
      await notifyChanged(tx, 'Tenant', tenantId, '', tenantId);
    });
    return rows;
  }

  /** Waits for earlier requests of the tenant, and records that the purge has begun. Returns its namespace, or null if it has none. */
  private async begin(tenantId: string, now: boolean, signal: AbortSignal): Promise<string | null> {
    const { database, settleMilliseconds = defaultSettle } = this.parts;
    const tenant = await database.system((tx) => beginPurge(tx, tenantId, now));
    if (!tenant) throw new NotPurgedError(`there is no tenant ${tenantId}`);
    if (tenant.purged_at) throw new NotPurgedError(`the data of the tenant ${tenantId} has been purged before`);
    if (tenant.deleted_for === null) {
      throw new NotPurgedError(`the tenant ${tenantId} is not deleted: DELETE /api/v1/tenants/${tenantId} comes first`);
    }
    if (!tenant.purge_started_at) {
      throw new NotPurgedError(
        `the tenant ${tenantId} can be restored until ${tenant.purge_at?.toISOString()}; --now purges it`,
      );
    }
    const wait = settleMilliseconds - tenant.deleted_for;
    if (wait > 0) {
      this.parts.step?.(`waiting ${Math.ceil(wait / 1000)} s for requests that began before its deletion`);
      await sleep(wait, signal);
      signal.throwIfAborted();
    }
    await this.sealBatches(tenantId, settleMilliseconds, signal);
    return tenant.namespace;
  }

  /**
   * Makes writers seal the batches of the tenant, for a while: a batch that is sealed after its row was deleted would leave its
   * leaves in the index.
   */
  private async sealBatches(tenantId: string, forMilliseconds: number, signal: AbortSignal): Promise<void> {
    const { database, logger, step } = this.parts;
    for (let waited = 0; await database.systemRead((tx) => hasOpenBatches(tx, tenantId)); waited += sealMilliseconds) {
      if (waited >= forMilliseconds) {
        logger.warn({ tenant: tenantId }, 'the batches of a purged tenant are not sealed: no process does it');
        return;
      }
      step?.('waiting for its batches to be sealed');
      await database.system((tx) => tx.query('SELECT pg_notify($1, $2)', [sealTenantChannel, tenantId]));
      await sleep(sealMilliseconds, signal);
      signal.throwIfAborted();
    }
  }

  /** Deletes the cold files and the rows of every table once. */
  private async deletePass(tenantId: string, signal: AbortSignal): Promise<number> {
    const { database, logger, cold, deleted = () => undefined } = this.parts;
    if (!cold.store && (await database.systemRead((tx) => countColdFiles(tx, tenantId))) > 0) {
      throw new Error('KELLET_COLD_URL is not set, but points of the tenant are in cold storage');
    }
    let rows = 0;
    const deleteAll = async (): Promise<void> => {
      rows += await deleteTenantRows(database, tenantId, deleted, signal);
    };
    const waiting = (): void => this.parts.step?.('waiting for another process that works on cold storage');
    await removeTenantFiles({ database, logger, ...cold }, tenantId, deleteAll, { waiting, signal });
    return rows;
  }
}

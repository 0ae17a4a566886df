// Times of last use of sessions and service keys, and of the first use of device keys: collected in memory, written every
// few seconds, at most once a minute each.
import { Loop } from '../../platform/background/loop.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';

type Table = 'sessions' | 'api_keys';
const idColumn: Readonly<Record<Table, string>> = { sessions: 'session_id', api_keys: 'key_id' };

const writeEveryMilliseconds = 2000;
const worthWritingMilliseconds = 60_000;

/** A device that has used its own key for the first time. */
export interface DeviceKeyUse {
  readonly tenantId: string;
  readonly deviceId: string;
}

/**
 * Called in the transaction that records first uses of device keys, before it locks the keys. Returns the devices whose rows another
 * transaction has locked: the uses of their keys are not recorded.
 */
export type OnDeviceKeyUses = (tx: Transaction, uses: readonly DeviceKeyUse[]) => Promise<readonly DeviceKeyUse[]>;

/**
 * Collects uses of credentials. A crash loses at most two seconds of them. Those of credentials whose rows are locked, such as the keys
 * of devices that are being deleted, are left out: they are noted again with the next use, and those of all tenants are written together.
 */
export class LastUsed {
  private readonly database: Database;
  private readonly onDeviceKeyUses: OnDeviceKeyUses;
  private readonly clock: Clock;
  private readonly loop: Loop;
  private readonly pending: Record<Table, Map<string, number>> = { sessions: new Map(), api_keys: new Map() };
  /** The pending API keys that belong to devices, by key. */
  private deviceKeys = new Map<string, DeviceKeyUse>();

  constructor(database: Database, clock: Clock, logger: Logger, onDeviceKeyUses: OnDeviceKeyUses) {
    this.database = database;
    this.onDeviceKeyUses = onDeviceKeyUses;
    this.clock = clock;
    this.loop = new Loop(logger, 'times of last use', writeEveryMilliseconds, () => this.write());
  }

  start(): void {
    this.loop.start();
  }

  async stop(): Promise<void> {
    await this.loop.stop();
    await this.write().catch(() => undefined);
  }

  /** Records a use now, unless the stored time is recent enough. */
  note(table: Table, id: string, stored: Date | null): void {
    const now = this.clock.now();
    if (stored === null || now - stored.getTime() > worthWritingMilliseconds) this.pending[table].set(id, now);
  }

  /** Records the use of a device's key, of which only the first matters. */
  noteDevice(keyId: string, use: DeviceKeyUse): void {
    this.pending.api_keys.set(keyId, this.clock.now());
    this.deviceKeys.set(keyId, use);
  }

  /** Writes the recorded uses; lists call it first to show them. */
  async write(): Promise<void> {
    for (const table of ['sessions', 'api_keys'] as const) {
      const uses = [...this.pending[table]];
      if (uses.length === 0) continue;
      this.pending[table] = new Map();
      const { deviceKeys } = this;
      if (table === 'api_keys') this.deviceKeys = new Map();
      try {
        await this.database.system(async (tx) => {
          const isOfKeys = table === 'api_keys' && deviceKeys.size > 0;
          const locked = new Set(isOfKeys ? await this.onDeviceKeyUses(tx, [...deviceKeys.values()]) : []);
          const free = uses.filter(([id]) => !locked.has(deviceKeys.get(id)!));
          await tx.query(
            `WITH used AS (
               SELECT id, at FROM unnest($1::uuid[], $2::timestamptz[]) AS given (id, at)
               JOIN ${table} ON ${idColumn[table]} = id FOR NO KEY UPDATE OF ${table} SKIP LOCKED)
             UPDATE ${table} SET last_used_at = greatest(last_used_at, used.at)
             FROM used WHERE ${idColumn[table]} = used.id`,
            [free.map(([id]) => id), free.map(([, at]) => new Date(at))],
          );
        });
      } catch (error) {
        // Keep a later use over one that could not be written.
        this.pending[table] = new Map([...uses, ...this.pending[table]]);
        if (table === 'api_keys') this.deviceKeys = new Map([...deviceKeys, ...this.deviceKeys]);
        throw error;
      }
    }
  }
}

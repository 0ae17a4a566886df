// Latest values and usage: merged in memory on commit, written within a second, read from both.
import type { Database, Transaction } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import {
  fromDocument,
  LatestBuilder,
  mergeLatest,
  noLatestValues,
  toDocument,
  type LatestDocument,
  type LatestValues,
} from './latest-values.ts';
import { toNanoseconds } from '../points/timestamp.ts';
import type { AcceptedPoint } from '../points/validate.ts';

/** Accepted and rejected points and stored bytes of a device or tenant. */
export interface Usage {
  readonly accepted: number;
  readonly rejected: number;
  readonly storedBytes: number;
}

/** Counts the points that name no device of the tenant. */
const noDevice = '00000000-0000-0000-0000-000000000000';
const devicesPerTransaction = 1000;
const writeEveryMilliseconds = 800;

interface DeviceChanges {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly points: LatestBuilder;
  accepted: number;
  rejected: number;
  storedBytes: number;
}
type Changes = Map<string, DeviceChanges>;

/** Keeps the latest values and usage of each device. */
export class SnapshotStore {
  private readonly database: Database;
  private readonly logger: Logger;
  private changes: Changes = new Map();
  /** Changes being written, which readers must still see. */
  private writing: Changes = new Map();
  private timer: NodeJS.Timeout | undefined;
  private running: Promise<void> = Promise.resolve();

  constructor(database: Database, logger: Logger) {
    this.database = database;
    this.logger = logger;
  }

  start(): void {
    this.timer = setInterval(() => void this.write(), writeEveryMilliseconds);
  }

  /** Writes pending changes and stops. */
  async stop(): Promise<void> {
    clearInterval(this.timer);
    await this.running;
    await this.write();
  }

  /** Merges committed points. */
  accept(points: readonly AcceptedPoint[]): void {
    for (const point of points) {
      const changes = this.changesOf(point.tenantId, point.device.deviceId);
      changes.points.add(point, toNanoseconds(point.time));
      changes.accepted += 1;
      // The payload is mostly one byte per character; its hash adds 32.
      changes.storedBytes += point.payload.length + 32;
    }
  }

  /** Counts a rejected point; `deviceId` is empty if it named no device of the tenant. */
  reject(tenantId: string, deviceId: string): void {
    this.changesOf(tenantId, deviceId || noDevice).rejected += 1;
  }

  private changesOf(tenantId: string, deviceId: string): DeviceChanges {
    const key = `${tenantId}/${deviceId}`;
    let changes = this.changes.get(key);
    if (!changes) {
      changes = { tenantId, deviceId, points: new LatestBuilder(), accepted: 0, rejected: 0, storedBytes: 0 };
      this.changes.set(key, changes);
    }
    return changes;
  }

  /** Returns the latest values of a device, or undefined if it has never sent a point. */
  async latest(tenantId: string, deviceId: string): Promise<LatestValues | undefined> {
    const { rows } = await this.database.read(tenantId, (tx) =>
      tx.query<{ document: LatestDocument }>(
        'SELECT document FROM telemetry_latest WHERE tenant_id = $1 AND device_id = $2',
        [tenantId, deviceId],
      ),
    );
    const merged = rows[0] ? fromDocument(rows[0].document) : noLatestValues();
    // Changes in memory when the row was read may be in both; merging them again is harmless.
    for (const changes of [this.writing, this.changes]) {
      const own = changes.get(`${tenantId}/${deviceId}`);
      if (own) mergeLatest(merged, own.points.latest());
    }
    return merged.time < 0n ? undefined : merged;
  }

  /** Returns the usage of a device, or of the whole tenant; up to a second behind. */
  async usage(tenantId: string, deviceId: string | undefined): Promise<Usage> {
    return this.database.read(tenantId, (tx) => readUsage(tx, tenantId, deviceId));
  }

  /** Writes the changes so far; those that fail stay in memory. */
  write(): Promise<void> {
    this.running = this.running.then(async () => {
      if (this.changes.size === 0) return;
      this.writing = this.changes;
      this.changes = new Map();
      // Every process takes locks in the same order.
      const all = [...this.writing.values()].sort((a, b) => (a.deviceId < b.deviceId ? -1 : 1));
      for (let first = 0; first < all.length; first += devicesPerTransaction) {
        const some = all.slice(first, first + devicesPerTransaction);
        try {
          await this.database.system((tx) => writeChanges(tx, some));
        } catch (error) {
          this.logger.warn({ err: error }, 'failed to write latest values; keeping them in memory');
          for (const changes of some) this.keep(changes);
        }
      }
      this.writing = new Map();
    });
    return this.running;
  }

  private keep(older: DeviceChanges): void {
    const newer = this.changesOf(older.tenantId, older.deviceId);
    newer.points.addOlder(older.points.latest());
    newer.accepted += older.accepted;
    newer.rejected += older.rejected;
    newer.storedBytes += older.storedBytes;
  }
}

async function writeChanges(tx: Transaction, all: readonly DeviceChanges[]): Promise<void> {
  await tx.query(
    `INSERT INTO telemetry_usage AS held (tenant_id, device_id, accepted, rejected, stored_bytes)
     SELECT * FROM unnest($1::text[], $2::uuid[], $3::int8[], $4::int8[], $5::int8[])
     ON CONFLICT (tenant_id, device_id) DO UPDATE SET accepted = held.accepted + excluded.accepted,
       rejected = held.rejected + excluded.rejected, stored_bytes = held.stored_bytes + excluded.stored_bytes`,
    [
      all.map((changes) => changes.tenantId),
      all.map((changes) => changes.deviceId),
      all.map((changes) => changes.accepted),
      all.map((changes) => changes.rejected),
      all.map((changes) => changes.storedBytes),
    ],
  );
  const measured = all.filter((changes) => changes.accepted > 0);
  if (measured.length === 0) return;
  const tenants = measured.map((changes) => changes.tenantId);
  const devices = measured.map((changes) => changes.deviceId);
  const inserted = await tx.query<{ device_id: string }>(
    `INSERT INTO telemetry_latest (tenant_id, device_id, document)
     SELECT * FROM unnest($1::text[], $2::uuid[], $3::jsonb[]) ON CONFLICT DO NOTHING RETURNING device_id`,
    [tenants, devices, measured.map((changes) => toDocument(changes.points.latest()))],
  );
  const isNew = new Set(inserted.rows.map((row) => row.device_id));
  const known = devices.filter((id) => !isNew.has(id));
  if (known.length === 0) return;
  const held = await tx.query<{ device_id: string; document: LatestDocument }>(
    'SELECT device_id, document FROM telemetry_latest WHERE device_id = ANY($1) ORDER BY device_id FOR UPDATE',
    [known],
  );
  const byDevice = new Map(measured.map((changes) => [changes.deviceId, changes.points.latest()]));
  const merged = held.rows.map((row) => {
    const latest = fromDocument(row.document);
    mergeLatest(latest, byDevice.get(row.device_id)!);
    return toDocument(latest);
  });
  await tx.query(
    `UPDATE telemetry_latest SET document = given.document
     FROM unnest($1::uuid[], $2::jsonb[]) AS given (device_id, document)
     WHERE telemetry_latest.device_id = given.device_id`,
    [held.rows.map((row) => row.device_id), merged],
  );
}

/** Returns the recorded usage of a device, or of the whole tenant. The latter costs more the more devices there are. */
export async function readUsage(tx: Transaction, tenantId: string, deviceId: string | undefined): Promise<Usage> {
  const { rows } = await tx.query<{ accepted: number; rejected: number; stored_bytes: number }>(
    `SELECT coalesce(sum(accepted), 0)::float8 AS accepted, coalesce(sum(rejected), 0)::float8 AS rejected,
       coalesce(sum(stored_bytes), 0)::float8 AS stored_bytes
     FROM telemetry_usage WHERE tenant_id = $1 AND ($2::uuid IS NULL OR device_id = $2)`,
    [tenantId, deviceId ?? null],
  );
  const row = rows[0]!;
  return { accepted: row.accepted, rejected: row.rejected, storedBytes: row.stored_bytes };
}

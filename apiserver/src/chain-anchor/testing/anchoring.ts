// chain-anchor on a real database, broker, gateway and chain, and batches as a telemetry writer seals them, for tests.
import { randomBytes } from 'node:crypto';
import { AnchorService } from '@kellet/proto/es/kellet/v1/anchor_pb.ts';
import {
  type AnchorMode,
  canonicalPayload,
  GENESIS_HEAD,
  leafHash,
  type LeafInputs,
  merkleRoot,
  segmentHead,
  toHex,
} from '@kellet/verify';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { readConfig } from '../../config/config.ts';
import type { Platform, ServiceModule } from '../../config/module.ts';
import { startTestGateway, type TestGateway } from '../../gateway/testing/test-gateway.ts';
import { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { systemClock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import type { Broker } from '../../platform/events/broker.ts';
import { OutboxRelay } from '../../platform/events/outbox.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { Paging } from '../../platform/requests/paging.ts';
import { type CallContext, internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { bytesOfIds } from '../../telemetry/leaves/leaf-bytes.ts';
import { createChainAnchor } from '../service.ts';
import { quickTiming } from './quick-timing.ts';
import { startTestChain, type TestChain } from './test-chain.ts';

export const tenantId = 'acme';

/** A batch as the telemetry writer leaves it. */
export interface TestBatch {
  readonly batchId: string;
  readonly mode: AnchorMode;
  readonly points: readonly LeafInputs[];
  readonly leaves: readonly Uint8Array[];
}

/** A running chain-anchor with all its dependencies. */
export interface Anchoring {
  readonly platform: Platform;
  readonly registry: ServiceRegistry;
  readonly devchain: TestChain;
  readonly gateway: TestGateway;
  /** The settings in use, by environment variable. */
  readonly settings: Readonly<Record<string, string>>;
  /** Stops the chain-anchor that was started initially. */
  halt(): Promise<void>;
  /** Creates another chain-anchor as in a second process, optionally with its own broker or database connections. */
  another(environment?: Record<string, string>, broker?: Broker, database?: Database): ServiceModule;
  stop(): Promise<void>;
}

/** Starts everything; `environment` adds settings, and an empty one disables a part. */
export async function startAnchoring(environment: Record<string, string> = {}): Promise<Anchoring> {
  const gateway = await startTestGateway(() => undefined);
  const devchain = await startTestChain({ callbackSecret: 'callback secret' });
  const { database } = gateway.testDatabase;
  await insertTenant(database, tenantId);
  await insertTenant(database, 'other');
  const walletKey = randomBytes(32).toString('hex');
  const logger = createLogger(process.env['KELLET_TEST_LOG_LEVEL'] ?? 'silent');
  const settings = (more: Record<string, string>) => ({
    KELLET_DATABASE_URL: gateway.testDatabase.url,
    KELLET_NATS_URL: process.env['KELLET_TEST_NATS_URL']!,
    KELLET_CONTROL_SECRET: 'control'.repeat(5),
    KELLET_JWT_PRIVATE_KEY: 'unused here',
    KELLET_CALLBACK_HMAC_SECRET: 'callback secret',
    KELLET_NETWORK: 'local',
    KELLET_ARC_URL: devchain.url,
    KELLET_HEADERS_URL: devchain.url,
    KELLET_FUNDING_URL: `${devchain.url}/dev/fund`,
    KELLET_WALLET_KEY: walletKey,
    KELLET_CALLBACK_URL: `${gateway.rest}/api/v1/callbacks/arc`,
    ...environment,
    ...more,
  });
  const platformWith = (more: Record<string, string>): Platform => ({
    config: readConfig(settings(more), []),
    clock: systemClock,
    logger,
    metrics: createMetrics(),
    database,
    broker: gateway.broker,
    outbox,
    paging: new Paging(Buffer.alloc(32, 7)),
    audit: new AuditTrail({ database, clock: systemClock, logger, metrics: createMetrics() }),
  });
  const outbox = new OutboxRelay(database, gateway.broker, logger, createMetrics());
  const platform = platformWith({});
  const registry = new ServiceRegistry();
  const module = createChainAnchor(platform, quickTiming);
  module.register(registry);
  await module.start!();
  return {
    platform,
    registry,
    devchain,
    gateway,
    another: (more = {}, broker = gateway.broker, own = database) =>
      createChainAnchor({ ...platformWith(more), broker, database: own }, quickTiming),
    settings: settings({}),
    halt: () => module.stop!(),
    async stop() {
      await module.stop!();
      await outbox.close();
      await devchain.stop();
      await gateway.stop();
    },
  };
}

let pointNumber = 0;

/** Returns a unique point. */
export function newPoint(deviceId: string, tenant = tenantId): LeafInputs {
  pointNumber += 1;
  return {
    tenantId: tenant,
    deviceId,
    timestampSeconds: 1_760_000_000 + pointNumber,
    payload: canonicalPayload({ temperature: pointNumber / 8 }, { state: 'läuft' }),
  };
}

/** Inserts a sealed batch in one transaction, as the telemetry writer does, and notifies. */
export async function sealBatch(
  database: Database,
  points: readonly LeafInputs[],
  mode: AnchorMode = 'merkle',
): Promise<TestBatch> {
  const batchId = newId();
  const leaves = points.map(leafHash);
  const segments = mode === 'chain' ? segmentsOf(points, leaves) : undefined;
  const treeLeaves = segments
    ? segments.map((segment) =>
        segmentHead(GENESIS_HEAD, leaves.slice(segment.first_leaf, segment.first_leaf + segment.leaf_count)),
      )
    : leaves;
  await database.system(async (tx) => {
    await tx.query(
      `INSERT INTO anchor_batches
         (tenant_id, batch_id, anchor_mode, status, writer_id, count, leaves, segments, merkle_root, sealed_at)
       VALUES ($1, $2, $3, 'sealed', $4, $5, $6, $7, $8, now())`,
      [
        points[0]!.tenantId,
        batchId,
        mode,
        newId(),
        treeLeaves.length,
        Buffer.concat(leaves),
        segments ? JSON.stringify(segments) : null,
        Buffer.from(merkleRoot(treeLeaves)),
      ],
    );
    await tx.query('INSERT INTO unpacked_leaves (tenant_id, batch_id, devices) VALUES ($1, $2, $3)', [
      ...[points[0]!.tenantId, batchId, bytesOfIds(points.map(({ deviceId }) => deviceId))],
    ]);
    const segment = await openSegment(tx);
    for (const [index, point] of points.entries()) {
      const leaf = Buffer.from(leaves[index]!);
      await tx.query(
        `INSERT INTO telemetry_segment_${segment} (time, device_id, batch_id, leaf_index, tenant_id, data_hash, payload, received)
         VALUES ($1, $2, $3, $4, $5, $6, $7, extract(epoch FROM now())::int8 * 1000)`,
        [
          BigInt(point.timestampSeconds) * 1_000_000_000n + 250_000_000n,
          point.deviceId,
          batchId,
          index,
          point.tenantId,
          leaf,
          point.payload,
        ],
      );
    }
    await tx.query(`SELECT pg_notify('kellet_batches', $1)`, [batchId]);
  });
  return { batchId, mode, points, leaves };
}

/** Writer of the segment of all points here. */
const writerId = newId();

/** Returns the open segment of the points, which is opened for the first of them. */
async function openSegment(tx: Transaction): Promise<bigint> {
  const { rows: open } = await tx.query<{ id: bigint }>(
    `SELECT segment_id AS id FROM telemetry_segments WHERE writer_id = $1 AND state = 'open' LIMIT 1`,
    [writerId],
  );
  if (open[0]) return open[0].id;
  const { rows } = await tx.query<{ id: bigint }>('SELECT telemetry_open_hot_segment($1) AS id', [writerId]);
  return rows[0]!.id;
}

/** Returns the runs of one device's points as segments. */
function segmentsOf(points: readonly LeafInputs[], leaves: readonly Uint8Array[]) {
  const segments: { device_id: string; previous_head: string; first_leaf: number; leaf_count: number }[] = [];
  for (let index = 0; index < leaves.length; index += 1) {
    const last = segments.at(-1);
    if (last?.device_id === points[index]!.deviceId) last.leaf_count += 1;
    else {
      segments.push({
        device_id: points[index]!.deviceId,
        previous_head: toHex(GENESIS_HEAD),
        first_leaf: index,
        leaf_count: 1,
      });
    }
  }
  return segments;
}

/** Returns the context of a call by a tenant administrator. */
export function asAdmin(tenant = tenantId): CallContext {
  return internalContext({ ...publicCaller, kind: 'user', tenantId: tenant, userId: newId() });
}

/** Returns the context of a call by the device itself. */
export function asDevice(deviceId: string): CallContext {
  return internalContext({ ...publicCaller, kind: 'device', tenantId, deviceId });
}

export const anchorMethods = AnchorService.method;

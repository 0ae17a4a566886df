// For tests: an installation with everything that is stored: hot and cold points, anchored batches, transactions,
// headers, artifacts in both kinds of store, latest values and numbers of devices.
import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { create } from '@bufbuild/protobuf';
import { IngestRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import type { AnchorMode } from '@kellet/verify';
import { newSigningKey } from '../../auth/testing/test-platform.ts';
import { type Anchoring, startAnchoring } from '../../chain-anchor/testing/anchoring.ts';
import { s3SettingsOf } from '../../config/config.ts';
import { ArtifactStores } from '../../device-link/ota/artifacts/artifact-stores.ts';
import { putArtifact } from '../../device-link/ota/testing/test-artifacts.ts';
import { addUpChanges } from '../../device-registry/devices/device-counts.ts';
import { chainAllOf } from '../../platform/audit/audit-chain.ts';
import { auditRecord } from '../../platform/audit/audit-event.ts';
import { insertPending, listAnchors } from '../../platform/audit/audit-store.ts';
import { systemClock } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { runColdCommand } from '../../telemetry/cold/cold-command.ts';
import { createTelemetry, type TelemetryModule } from '../../telemetry/service.ts';
import { testDevice, testDeviceId, TestDevices, testLiveness } from '../../telemetry/testing/test-devices.ts';

const modes: readonly AnchorMode[] = ['merkle', 'chain'];

/** An installation that runs in this process. */
export class TestInstallation {
  readonly anchoring: Anchoring;
  readonly coldFolder: string;
  readonly artifactFolder: string;
  /** Settings for the commands of kellet-apiserver, by environment variable. */
  readonly settings: Readonly<Record<string, string>>;
  private readonly folder: string;
  private readonly telemetry: TelemetryModule;
  private readonly registry: ServiceRegistry;
  private sent = 0;

  private constructor(anchoring: Anchoring, folder: string) {
    this.anchoring = anchoring;
    this.folder = folder;
    this.coldFolder = join(folder, 'cold');
    this.artifactFolder = join(folder, 'artifacts');
    this.settings = { ...anchoring.settings, KELLET_JWT_PRIVATE_KEY: newSigningKey() };
    const devices = new TestDevices();
    for (const [index, anchoringMode] of modes.entries()) {
      devices.add('acme', testDevice(testDeviceId(index + 1), { anchoringMode }));
    }
    this.telemetry = createTelemetry(anchoring.platform, devices, testLiveness(), {
      ...{ maintenanceMilliseconds: 100, coldMilliseconds: 3_600_000, writer: { segmentRows: 500 } },
    });
    this.registry = new ServiceRegistry();
    this.telemetry.register(this.registry);
  }

  /** Starts it with devices, but without points. */
  static async start(): Promise<TestInstallation> {
    const folder = await mkdtemp(join(tmpdir(), 'kellet-installation-'));
    const anchoring = await startAnchoring({
      KELLET_COLD_URL: pathToFileURL(join(folder, 'cold')).href,
      KELLET_ARTIFACT_STORE: pathToFileURL(join(folder, 'artifacts')).href,
      KELLET_BATCH_POINTS: '20',
      KELLET_BATCH_SECONDS: '1',
    });
    const installation = new TestInstallation(anchoring, folder);
    await installation.addDevices();
    await installation.telemetry.start!();
    return installation;
  }

  get database(): Database {
    return this.anchoring.platform.database;
  }

  private async addDevices(): Promise<void> {
    await this.database.system(async (tx) => {
      const groupId = newId();
      const profileId = newId();
      await tx.query(`INSERT INTO device_groups (tenant_id, group_id, name) VALUES ('acme', $1, 'all')`, [groupId]);
      for (const index of modes.keys()) {
        const deviceId = testDeviceId(index + 1);
        await tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id) VALUES ('acme', $1, $2, $2, $3)`,
          [deviceId, `device ${index}`, profileId],
        );
        await tx.query(`INSERT INTO device_group_members (tenant_id, group_id, device_id) VALUES ('acme', $1, $2)`, [
          ...[groupId, deviceId],
        ]);
      }
    });
    await this.database.system((tx) => addUpChanges(tx));
  }

  /** Sends points of all devices; some have text. */
  async sendPoints(count: number): Promise<void> {
    const points = Array.from({ length: count }, (_, index) => {
      this.sent += 1;
      return {
        deviceId: testDeviceId((index % modes.length) + 1),
        timestamp: new Date(Date.now() - 86_400_000 + this.sent * 10).toISOString(),
        numericValues: { n: this.sent },
        ...(index % 5 === 0 && { stringValues: { text: `ü ${this.sent}` } }),
      };
    });
    const caller = { ...publicCaller, kind: 'service', tenantId: 'acme', credentialHash: 'a'.repeat(64) } as const;
    await this.registry.unary(
      TelemetryService.method.ingest,
      create(IngestRequestSchema, { points }),
      internalContext(caller),
    );
  }

  /** Adds events to an audit log, and waits until its head is anchored. */
  async addAuditEvents(count: number): Promise<void> {
    const facts = {
      ...{
        tenantId: 'acme',
        action: 'AuthService/CreateUser',
        result: 'OK',
        address: '',
        userAgent: '',
        requestId: '',
      },
      ...{ actor: { kind: 'user', id: 'u1', name: 'Ann' }, resource: { kind: 'user', id: 'u2' } },
    };
    const records = Array.from({ length: count }, () => auditRecord(facts, newId(), Date.now()));
    await this.database.system((tx) => insertPending(tx, records));
    await chainAllOf(this.database, systemClock, 'acme');
    await eventually(
      async () => (await this.database.read('acme', (tx) => listAnchors(tx, 'acme', undefined, 1))).length > 0,
    );
  }

  /** Turns all points cold. */
  async turnCold(): Promise<void> {
    const { config, logger } = this.anchoring.platform;
    const lines: string[] = [];
    const parts = { config, logger, database: this.database, write: (line: string) => void lines.push(line) };
    const code = await runColdCommand(['run', '--all'], parts);
    if (code !== 0) throw new Error(lines.join('\n'));
  }

  /** Mines until all batches are confirmed. */
  async confirmAll(): Promise<void> {
    await eventually(async () => {
      await this.anchoring.devchain.control('mine', { count: 1 });
      const { rows } = await this.database.system((tx) =>
        tx.query<{ left: number }>(`SELECT count(*)::int4 AS left FROM anchor_batches WHERE status <> 'confirmed'`),
      );
      await new Promise((resolve) => setTimeout(resolve, 100));
      return rows[0]!.left === 0;
    }, 60_000);
  }

  /** Stores an artifact in a store, as KELLET_ARTIFACT_STORE names it, and returns its SHA-256. */
  async putArtifact(store: string, size: number): Promise<Buffer> {
    const bytes = randomBytes(size);
    const sha256 = createHash('sha256').update(bytes).digest();
    const stores = new ArtifactStores(store, s3SettingsOf(this.anchoring.platform.config));
    const pieces = async function* () {
      for (let at = 0; at < size; at += 60_000) yield bytes.subarray(at, at + 60_000);
    };
    await putArtifact(this.database, 'acme', { sha256, sizeBytes: size }, pieces(), stores);
    stores.close();
    return sha256;
  }

  /** Adds an available package with an artifact. */
  async addPackage(sha256: Buffer): Promise<void> {
    await this.database.system((tx) =>
      tx.query(
        `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
           size_bytes, status) VALUES ('acme', $1, 'p', 'p', 'fw', '1.0.0', 'https://example.org/p', $2, '', 1, 'available')`,
        [newId(), sha256],
      ),
    );
  }

  /** Stops taking points; everything is written. */
  async stopTelemetry(): Promise<void> {
    await this.telemetry.stop!();
  }

  async stop(): Promise<void> {
    await this.anchoring.stop();
    await rm(this.folder, { recursive: true, force: true });
  }
}

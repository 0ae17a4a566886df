// For tests: a rules engine on a real database, with devices, and points as a flush hands them over.
import { zstdCompressSync } from 'node:zlib';
import { create, type DescMethod, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { customerHasUsers } from '../../auth/accounts/account-store.ts';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../../auth/testing/test-platform.ts';
import type { ServiceModule } from '../../config/module.ts';
import { RolloutMembership } from '../../device-link/ota/rollouts/membership.ts';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { templatesOfGroup } from '../../device-link/provisioning/template-store.ts';
import { createDeviceRegistry, type DeviceRegistryModule } from '../../device-registry/service.ts';
import type { Database } from '../../platform/database/database.ts';
import { KelletError } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { internalContext, type LimitedGrant, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createRulesEngine } from '../service.ts';

/** A point of a test: seconds since a fixed time, and values. */
export interface TestPoint {
  readonly at: number;
  readonly numeric?: Readonly<Record<string, number>>;
  readonly string?: Readonly<Record<string, string>>;
}

const base = 1_790_000_000;

/** Hands points of a device to the rules engine, as one flush. */
export async function feed(
  database: Database,
  tenantId: string,
  deviceId: string,
  points: readonly TestPoint[],
): Promise<void> {
  const rows = points.map(({ at, numeric, string }) => [
    deviceId,
    `${base + at}000000000`,
    { numeric_values: numeric ?? {}, string_values: string ?? {} },
  ]);
  await database.system((tx) =>
    tx.query('INSERT INTO rule_points (tenant_id, points) VALUES ($1, $2)', [
      tenantId,
      zstdCompressSync(JSON.stringify(rows)),
    ]),
  );
}

/** Waits until no points are left. */
export async function evaluated(database: Database): Promise<void> {
  for (let attempt = 0; attempt < 400; attempt += 1) {
    const { rows } = await database.system((tx) => tx.query('SELECT FROM rule_points LIMIT 1'));
    if (rows.length === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error('the points were not evaluated in time');
}

/** The services of a test. */
export class TestRules {
  readonly test: TestDatabase;
  readonly clock = new MovableClock();
  readonly registry = new ServiceRegistry();
  private readonly engine: ServiceModule;
  private readonly directory: ServiceModule;
  private isRunning = false;

  private constructor(test: TestDatabase, settings: Record<string, string>) {
    this.test = test;
    const platform = testPlatform(test.database, this.clock, settings);
    const profiles = createProfileReader(test.database);
    const devices: DeviceRegistryModule = createDeviceRegistry(platform, profiles, new RolloutMembership(this.clock), {
      ofGroup: templatesOfGroup,
      customerHasUsers,
    });
    this.directory = devices;
    this.engine = createRulesEngine(platform, profiles, devices.directory);
    for (const module of [this.directory, this.engine]) module.register(this.registry);
  }

  /** Starts the services; with `evaluates: false`, points wait until `run`. */
  static async start(settings: Record<string, string> = {}, { evaluates = true } = {}): Promise<TestRules> {
    const test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'other');
    const rules = new TestRules(test, settings);
    await rules.directory.start?.();
    if (evaluates) await rules.run();
    return rules;
  }

  /** Starts evaluating. */
  async run(): Promise<void> {
    this.isRunning = true;
    await this.engine.start?.();
  }

  async stop(): Promise<void> {
    if (this.isRunning) await this.engine.stop?.();
    await this.directory.stop?.();
    await this.test.drop();
  }

  private invoke<M extends DescMethod>(
    of: M,
    request: MessageInitShape<M['input']>,
    tenantId: string,
    scopes: string[],
    limitedGrants: readonly LimitedGrant[] = [],
  ) {
    const context = internalContext({ ...publicCaller, tenantId, scopes: new Set(scopes), limitedGrants });
    return this.registry.unary(of, create(of.input, request) as MessageShape<M['input']>, context);
  }

  /** Calls RulesService. */
  rules<M extends (typeof RulesService.method)[keyof typeof RulesService.method]>(
    of: M,
    request: MessageInitShape<M['input']>,
    tenantId = 'acme',
    scopes: string[] = ['rules:write', 'rpc:write', 'devices:read', 'telemetry:read'],
    limitedGrants: readonly LimitedGrant[] = [],
  ) {
    return this.invoke(of, request, tenantId, scopes, limitedGrants);
  }

  /** Calls DeviceRegistryService. */
  devices<M extends (typeof DeviceRegistryService.method)[keyof typeof DeviceRegistryService.method]>(
    of: M,
    request: MessageInitShape<M['input']>,
    tenantId = 'acme',
  ) {
    return this.invoke(of, request, tenantId, []);
  }

  /** Creates a device and returns its id. */
  async makeDevice(
    request: MessageInitShape<typeof DeviceRegistryService.method.createDevice.input> = {},
    tenantId = 'acme',
  ): Promise<string> {
    const { device } = await this.devices(
      DeviceRegistryService.method.createDevice,
      { hardwareId: newId(), ...request },
      tenantId,
    );
    return device!.deviceId;
  }

  /** Creates a rule. */
  makeRule(request: MessageInitShape<typeof RulesService.method.createRule.input>, tenantId = 'acme') {
    return this.rules(
      RulesService.method.createRule,
      { name: newId(), expression: 'numeric.t > 30', ...request },
      tenantId,
    );
  }

  getRule(ruleId: string, tenantId = 'acme') {
    return this.rules(RulesService.method.getRule, { ruleId }, tenantId);
  }

  /** Evaluates points of a device. */
  async send(deviceId: string, points: readonly TestPoint[], tenantId = 'acme'): Promise<void> {
    await feed(this.test.database, tenantId, deviceId, points);
    await evaluated(this.test.database);
  }

  /** Returns the alarms that match a filter. */
  async alarms(
    request: MessageInitShape<typeof DeviceRegistryService.method.listAlarms.input> = {},
    tenantId = 'acme',
  ) {
    return (await this.devices(DeviceRegistryService.method.listAlarms, request, tenantId)).alarms;
  }

  /** Returns the events in the outbox, oldest first. */
  async events(): Promise<{ subject: string; data: Record<string, unknown> }[]> {
    const { rows } = await this.test.database.system((tx) =>
      tx.query<{ subject: string; payload: string }>('SELECT subject, payload FROM outbox ORDER BY position'),
    );
    return rows.map(({ subject, payload }) => ({
      subject,
      data: (JSON.parse(payload) as { data: Record<string, unknown> }).data,
    }));
  }

  /** Runs SQL. */
  async query<T extends object>(text: string, values: unknown[] = []): Promise<T[]> {
    return (await this.test.database.system((tx) => tx.query<T & Record<string, unknown>>(text, values))).rows;
  }
}

/** Returns the code and message of the error with which a call fails. */
export async function refusalOf(call: Promise<unknown>): Promise<string> {
  try {
    await call;
    return 'OK';
  } catch (error) {
    return error instanceof KelletError ? `${error.code} ${error.message}` : String(error);
  }
}

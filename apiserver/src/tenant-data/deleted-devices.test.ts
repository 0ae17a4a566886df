import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { customerHasUsers } from '../auth/accounts/account-store.ts';
import { MovableClock, testPlatform } from '../auth/testing/test-platform.ts';
import { RolloutMembership } from '../device-link/ota/rollouts/membership.ts';
import { createProfileReader } from '../device-link/provisioning/profiles.ts';
import { templatesOfGroup } from '../device-link/provisioning/template-store.ts';
import { createDeviceRegistry } from '../device-registry/service.ts';
import { nilId } from '../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { forgetDeletedDevices } from './deleted-devices.ts';
import { deviceTables, fillDevice, fillTenant } from './testing/test-rows.ts';

const { method } = DeviceRegistryService;

/** Tables that keep rows of deleted devices for a time of their own, or a number. */
const keptForATime = {
  alarms: 'the oldest cleared ones of a tenant with too many are deleted',
  device_commands: 'KELLET_COMMAND_RETENTION_DAYS after they end, at the latest when they expire',
  device_group_checks: 'compared with the queries of groups within seconds',
  device_history: 'KELLET_DEVICE_HISTORY_DAYS',
  mqtt_sessions: 'until they expire',
  ota_rollout_cohort: 'a deletion leaves the rollouts that run, and the cohorts of others are dropped',
  ota_rollout_devices: 'KELLET_ROLLOUT_RETENTION_DAYS after the rollout',
  rule_actions: 'until they are taken, or 30 days',
};

/** Tables that tell of the points of a device, which stay provable. */
const keptForProofs = {
  device_chain: 'the head of its chain, which follows from its batches',
  leaf_index: 'its leaves',
  ota_results: 'its results are points',
  telemetry_usage: 'finds its points when the tenant is purged',
};

/** Tables that list certificates until they expire. */
const keptForCertificates = {
  device_certificates: 'in the list of revoked ones',
  api_keys: 'tells when the certificate was revoked',
};

describe('what deleted devices leave', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let tables: string[];
  const registry = new ServiceRegistry();

  before(async () => {
    test = await createTestDatabase();
    await fillTenant(test.database, 'acme');
    const platform = testPlatform(test.database, new MovableClock());
    const usage = { ofGroup: templatesOfGroup, customerHasUsers };
    const membership = new RolloutMembership(platform.clock);
    createDeviceRegistry(platform, createProfileReader(test.database), membership, usage).register(registry);
    tables = (await test.database.system((tx) => deviceTables(tx)))
      .map(({ name }) => name)
      // Segments have points until these are past their retention, and leaves are kept in other tables later.
      .filter((name) => !/^(telemetry_points|telemetry_segment_\d+|leaf_index_\d+|deleted_devices)$/.test(name));
  });
  after(() => test.drop());

  const call = <M extends (typeof method)[keyof typeof method]>(of: M, request: MessageInitShape<M['input']>) =>
    registry.unary(
      of,
      create(of.input, request) as MessageShape<M['input']>,
      internalContext({ ...publicCaller, kind: 'kubernetes', tenantId: 'acme' }),
    );
  const query = async <Row extends object>(text: string, ...values: unknown[]): Promise<Row[]> =>
    (await test.database.system((tx) => tx.query<Row & Record<string, unknown>>(text, values))).rows;
  let made = 0;
  const make = async (filled: readonly string[]): Promise<string> => {
    const { device } = await call(method.createDevice, { hardwareId: `h${(made += 1)}` });
    await fillDevice(test.database, 'acme', device!.deviceId, filled);
    return device!.deviceId;
  };
  /** Returns the tables with rows of a device, and their number. */
  const rowsOf = async (deviceId: string): Promise<Record<string, number>> => {
    const found: Record<string, number> = {};
    for (const name of ['devices', 'deleted_devices', ...tables]) {
      const [row] = await query<{ n: number }>(
        `SELECT count(*)::int4 AS n FROM ONLY ${name} WHERE device_id = $1`,
        deviceId,
      );
      if (row!.n > 0) found[name] = row!.n;
    }
    return found;
  };
  const usageOf = (table: string) =>
    query(
      `SELECT sum(accepted)::int4 AS accepted, sum(rejected)::int4 AS rejected FROM ${table} WHERE tenant_id = 'acme'`,
    );
  const forget = async (): Promise<void> => {
    await query('UPDATE deleted_devices SET forget_at = now()');
    while ((await test.database.system((tx) => forgetDeletedDevices(tx, 2))) === 2);
  };

  it('is deleted but for what is kept for a time and what proves their points, however often devices come and go', async () => {
    const ofProofs = Object.keys(keptForProofs);
    const ofCertificates = ['device_certificates'];
    const ordinary = tables.filter((name) => !ofProofs.includes(name) && !ofCertificates.includes(name));
    // Of a device that does not exist.
    await query('DELETE FROM telemetry_usage');
    await query('DELETE FROM telemetry_tenant_usage');
    const stays = await make(tables);
    await query('UPDATE telemetry_usage SET accepted = 1 WHERE device_id = $1', stays);
    const before = await rowsOf(stays);
    expect(Object.keys(before)).to.include.members(['devices', ...tables]);
    const [silent, sending, certified]: string[][] = [[], [], []];
    for (let round = 0; round < 3; round += 1) {
      const now = [
        await make(ordinary),
        await make([...ordinary, ...ofProofs]),
        await make([...ordinary, ...ofCertificates]),
      ];
      for (const [index, list] of [silent, sending, certified].entries()) list!.push(now[index]!);
      await query('UPDATE telemetry_usage SET accepted = 1, rejected = 5 WHERE device_id = $1', now[1]);
      await query('INSERT INTO telemetry_usage (tenant_id, device_id, rejected) VALUES ($1, $2, 7)', 'acme', now[0]);
      for (const deviceId of now) {
        await call(method.deleteDevice, { deviceId });
        // Whoever looks for a device of before finds what is left of it for a week.
        expect(await rowsOf(deviceId)).to.include({ devices: 1, deleted_devices: 1, telemetry_latest: 1 });
      }
      expect(await test.database.system((tx) => forgetDeletedDevices(tx, 2))).to.equal(0);
      await forget();
    }
    const isKept = (name: string): boolean => name in keptForATime;
    for (const deviceId of silent!)
      expect(Object.keys(await rowsOf(deviceId)).filter((name) => !isKept(name))).to.deep.equal([]);
    for (const deviceId of sending!) {
      const left = Object.keys(await rowsOf(deviceId)).filter((name) => !isKept(name));
      expect(left.sort()).to.deep.equal(['devices', ...ofProofs].sort());
    }
    for (const deviceId of certified!) {
      const left = Object.keys(await rowsOf(deviceId)).filter((name) => !isKept(name));
      expect(left.sort()).to.deep.equal(['deleted_devices', 'devices', ...Object.keys(keptForCertificates)].sort());
    }
    // As the sweep of certificates that have expired does.
    await query('DELETE FROM api_keys WHERE device_id = ANY ($1)', certified);
    await forget();
    for (const deviceId of certified!)
      expect(Object.keys(await rowsOf(deviceId)).filter((name) => !isKept(name))).to.deep.equal([]);
    expect(await rowsOf(stays)).to.deep.equal(before);
    // Rejections are counted as those of unknown devices, and the sums of the tenant are those of its rows.
    expect(await usageOf('telemetry_tenant_usage')).to.deep.equal(await usageOf('telemetry_usage'));
    const [unknown] = await query<{ rejected: number }>(
      `SELECT rejected::int4 AS rejected FROM telemetry_usage WHERE tenant_id = 'acme' AND device_id = $1`,
      nilId,
    );
    expect(unknown!.rejected).to.equal(3 * 7);
  });

  it('is deleted in steps of bounded size', async () => {
    const deviceId = await make([]);
    await query(
      `INSERT INTO rule_states (tenant_id, device_id, rule_id, version)
       SELECT 'acme', $1, gen_random_uuid(), 1 FROM generate_series(1, 12000)`,
      deviceId,
    );
    await call(method.deleteDevice, { deviceId });
    await query('UPDATE deleted_devices SET forget_at = now()');
    for (const left of [7000, 2000]) {
      expect(await test.database.system((tx) => forgetDeletedDevices(tx, 500))).to.equal(500);
      expect((await rowsOf(deviceId))['rule_states']).to.equal(left);
    }
    expect(await test.database.system((tx) => forgetDeletedDevices(tx, 500))).to.equal(1);
    expect(await rowsOf(deviceId)).not.to.have.any.keys('rule_states', 'devices', 'deleted_devices');
  });
});

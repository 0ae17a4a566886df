// Uses of the keys of all tenants, which are written together, while a transaction of one holds a device and its keys.
import { expect } from 'chai';
import { leaveGateways } from '../../device-registry/devices/devices.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { mintDeviceKey } from '../device-credentials/device-keys.ts';
import { insertTenant } from '../testing/test-fixtures.ts';
import { MovableClock } from '../testing/test-platform.ts';
import { LastUsed } from './last-used.ts';

describe('times of last use', () => {
  let test: TestDatabase;
  let lastUsed: LastUsed;

  beforeEach(async () => {
    test = await createTestDatabase();
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
    lastUsed = new LastUsed(test.database, new MovableClock(), createLogger('silent'), leaveGateways);
  });
  afterEach(() => test.drop());

  /** Makes a device behind a gateway, with a key of its own. */
  const make = async (tenantId: string) => {
    const [gatewayId, deviceId] = [newId(), newId()];
    return test.database.tenant(tenantId, async (tx) => {
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, gateway_device_id)
         VALUES ($1, $2, 'g', 'g', NULL), ($1, $3, 'd', 'd', $2)`,
        [tenantId, gatewayId, deviceId],
      );
      await mintDeviceKey(tx, tenantId, deviceId);
      const { rows } = await tx.query<{ id: string }>('SELECT key_id AS id FROM api_keys WHERE device_id = $1', [
        deviceId,
      ]);
      return { tenantId, deviceId, keyId: rows[0]!.id };
    });
  };
  const stateOf = async ({ deviceId }: { deviceId: string }) => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ used: boolean; has_gateway: boolean }>(
        `SELECT last_used_at IS NOT NULL AS used, gateway_device_id IS NOT NULL AS has_gateway
         FROM devices JOIN api_keys USING (tenant_id, device_id) WHERE device_id = $1`,
        [deviceId],
      ),
    );
    return rows[0]!;
  };

  for (const [what, hold] of [
    ['a device', 'SELECT FROM devices WHERE tenant_id = $1 AND device_id = $2 FOR UPDATE'],
    ['the keys of a device', 'SELECT FROM api_keys WHERE tenant_id = $1 AND device_id = $2 FOR UPDATE'],
  ] as const) {
    it(`are written while a transaction of another tenant keeps ${what} locked`, async () => {
      const [held, free] = [await make('acme'), await make('other')];
      const use = () => {
        for (const { keyId, ...device } of [held, free]) lastUsed.noteDevice(keyId, device);
        return lastUsed.write();
      };
      await test.database.tenant('acme', async (tx) => {
        await tx.query(hold, ['acme', held.deviceId]);
        const begun = performance.now();
        await use();
        expect(performance.now() - begun).to.be.lessThan(2000);
      });
      expect(await stateOf(free)).to.deep.equal({ used: true, has_gateway: false });
      expect((await stateOf(held)).used).to.equal(false);
      await use();
      expect(await stateOf(held)).to.deep.equal({ used: true, has_gateway: false });
    });
  }
});

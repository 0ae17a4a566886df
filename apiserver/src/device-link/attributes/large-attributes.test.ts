import { create } from '@bufbuild/protobuf';
import { DeviceLinkService } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createAttributes } from './service.ts';

describe('large attributes of devices', () => {
  const tenantId = 'acme';
  let test: TestDatabase;

  before(async () => {
    test = await createTestDatabase();
    await test.database.system((tx) =>
      tx.query('INSERT INTO tenants (tenant_id, name, namespace) VALUES ($1, $1, $1)', [tenantId]),
    );
  });
  after(() => test?.drop());

  it('are read by few calls of a tenant at a time, also those that change nothing', async () => {
    let running = 0;
    let most = 0;
    // How many have the whole of some attributes at once.
    const counting = (run: 'read' | 'tenant') => (tenant: string, work: (tx: Transaction) => Promise<unknown>) =>
      test.database[run](tenant, async (tx) => {
        let isWhole = false;
        const query = async (...[text, values]: Parameters<Transaction['query']>) => {
          if (text.includes('FROM device_attributes') && (values?.[2] ?? Infinity) === Infinity) {
            isWhole = true;
            most = Math.max(most, (running += 1));
          }
          return tx.query(text, values);
        };
        return work(Object.assign(Object.create(tx) as Transaction, { query })).finally(
          () => isWhole && (running -= 1),
        );
      });
    const database = Object.assign(Object.create(test.database) as Database, {
      read: counting('read'),
      tenant: counting('tenant'),
    });
    const registry = new ServiceRegistry();
    createAttributes({ database, clock: { now: () => Date.now() } }).register?.(registry);
    const items = 5_400;
    const deviceIds = Array.from({ length: 20 }, newId);
    await test.database.tenant(tenantId, async (tx) => {
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, hardware_id, name) SELECT $1, id, id::text, '' FROM unnest($2::uuid[]) AS id`,
        [tenantId, deviceIds],
      );
      await tx.query(
        `INSERT INTO device_attributes (tenant_id, device_id, scope, attributes)
         SELECT $1, id, 'server', $3::jsonb FROM unnest($2::uuid[]) AS id`,
        [tenantId, deviceIds, JSON.stringify({ list: { value: Array(items).fill({}), updated_at: 1 } })],
      );
    });
    const context = internalContext({ ...publicCaller, kind: 'user', tenantId });
    const { getAttributes, updateAttributes } = DeviceLinkService.method;
    const shown = await Promise.all(
      deviceIds.map((deviceId, place) =>
        place % 2 === 0
          ? registry.unary(getAttributes, create(getAttributes.input, { deviceId }), context)
          : registry.unary(updateAttributes, create(updateAttributes.input, { deviceId }), context),
      ),
    );
    for (const { server } of shown) {
      expect(server['list']?.value?.kind).to.have.nested.property('value.values.length', items);
    }
    expect(most).to.equal(2);
  });
});

// What reads of profiles take out of the database: schemas are large, and devices inherit little of them.
import { Device_Status } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { filtersOf, selectDevices } from '../../device-registry/devices/device-selection.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { namedId } from '../../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createProfileReader } from './profiles.ts';

/** A database that counts the bytes of the rows that its reads return. */
function counting(database: Database): { database: Database; bytes: () => number } {
  let bytes = 0;
  const count = (tx: Transaction): Transaction => ({
    hint: (...args) => tx.hint(...args),
    query: async <Row extends Record<string, unknown>>(text: string, values?: readonly unknown[]) => {
      const result = await tx.query<Row>(text, values);
      bytes += JSON.stringify(result.rows).length;
      return result;
    },
  });
  const counted = {
    read: <T>(tenantId: string, work: (tx: Transaction) => Promise<T>) =>
      database.read(tenantId, (tx) => work(count(tx))),
  };
  return { database: counted as unknown as Database, bytes: () => bytes };
}

describe('profiles with large schemas', () => {
  let test: TestDatabase;
  const number = 20;
  const idOf = (index: number, tenant = 'acme') => namedId(tenant, 'profile', `p${index}`);
  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'other');
    const keys = { k: { type: 'string', enum: Array.from({ length: 128 }, (_, at) => `${at}`.padEnd(1000, 'x')) } };
    for (const tenant of ['acme', 'other']) {
      await test.database.tenant(tenant, async (tx) => {
        for (let index = 0; index < number; index += 1) {
          const document = {
            default_tags: { site: index % 2 === 0 ? 'north' : 'south', place: `=${index}` },
            telemetry_schema: { keys },
          };
          await tx.query(
            `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
             VALUES ($1, $2, 'ns', $3, $3, $4)`,
            [tenant, idOf(index, tenant), `p${index}`, JSON.stringify(document)],
          );
        }
      });
    }
  });
  after(() => test?.drop());

  it('are found by their default tags without reading the schemas', async () => {
    const { database, bytes } = counting(test.database);
    const tags = ['site=north', 'place==3', 'site=', 'none=1'];
    const fields = {
      status: Device_Status.status_unspecified,
      profileId: '',
      groupId: '',
      tag: tags,
      hardwareId: '',
      q: '',
      customerId: '',
    };
    const filters = filtersOf(fields, { customerId: null, deviceGroupIds: null });
    const selection = await selectDevices(createProfileReader(database), 'acme', filters);
    const { values } = await database.read('acme', (tx) => selection.where(tx, 1));
    const even = Array.from({ length: number / 2 }, (_, index) => idOf(2 * index)).sort();
    const found = values.filter((value) => Array.isArray(value)).map((ids) => (ids as string[]).toSorted());
    expect(found).to.deep.equal([even, [idOf(3)], [], []]);
    expect(bytes()).to.be.below(2000);
  });

  it('are found by their names without reading the schemas', async () => {
    const { database, bytes } = counting(test.database);
    const found = await database.read('acme', (tx) =>
      createProfileReader(database).idsByName(tx, 'acme', ['p7', 'none', 'p1']),
    );
    expect([...found].sort()).to.deep.equal([
      ['p1', idOf(1)],
      ['p7', idOf(7)],
    ]);
    expect(bytes()).to.be.below(500);
  });
});

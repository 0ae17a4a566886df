// What reads of profiles take out of the database: schemas are large, and devices inherit little of them.
import { Device_Status } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { customerHasUsers } from '../../auth/accounts/account-store.ts';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../../auth/testing/test-platform.ts';
import { filtersOf, selectDevices } from '../../device-registry/devices/device-selection.ts';
import { createDeviceRegistry } from '../../device-registry/service.ts';
import { startTestGateway } from '../../gateway/testing/test-gateway.ts';
import { namedId } from '../../platform/ids.ts';
import { countBytesRead } from '../../platform/testing/bytes-read.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { RolloutMembership } from '../ota/rollouts/membership.ts';
import { createProfileReader } from './profiles.ts';
import { templatesOfGroup } from './template-store.ts';

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
    const { database, bytes } = countBytesRead(test.database);
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

  it('are found once by a tag that many queries have', async () => {
    const { database, bytes } = countBytesRead(test.database);
    const tags = Array.from({ length: 1600 }, (_, n) => ({ key: 'site', value: n % 2 ? 'north' : 'south' }));
    const found = await database.read('acme', (tx) => createProfileReader(database).withDefaultTags(tx, 'acme', tags));
    const odd = found.slice(0, 2).map((ids) => ids.toSorted());
    expect(odd.map((ids) => ids.length)).to.deep.equal([number / 2, number / 2]);
    expect(found.slice(1598).map((ids) => ids.toSorted())).to.deep.equal(odd);
    expect(bytes()).to.be.below(3000);
  });

  it('are found by their names without reading the schemas', async () => {
    const { database, bytes } = countBytesRead(test.database);
    const found = await database.read('acme', (tx) =>
      createProfileReader(database).idsByName(tx, 'acme', ['p7', 'none', 'p1']),
    );
    expect([...found].sort()).to.deep.equal([
      ['p1', idOf(1)],
      ['p7', idOf(7)],
    ]);
    expect(bytes()).to.be.below(500);
  });

  it('are held and shown with their devices without reading the schemas', async () => {
    const { database, bytes } = countBytesRead(test.database);
    const profiles = createProfileReader(database);
    const asked = [idOf(0), idOf(1, 'other'), idOf(1)];
    const shown = await database.read('acme', (tx) => profiles.shown(tx, 'acme', asked));
    expect([...shown.values()].sort((a, b) => (a.name < b.name ? -1 : 1))).to.deep.equal([
      { profileId: idOf(0), name: 'p0', defaultTags: { site: 'north', place: '=0' } },
      { profileId: idOf(1), name: 'p1', defaultTags: { site: 'south', place: '=1' } },
    ]);
    const held = await database.tenant('acme', (tx) => profiles.hold(tx, 'acme', [...asked, 'malformed']));
    expect([...held].sort()).to.deep.equal([idOf(0), idOf(1)].sort());
    expect(bytes()).to.be.below(1000);
  });

  it('are not read by pages of devices, nor by imports that name them', async () => {
    const { database, bytes } = countBytesRead(test.database);
    const platform = testPlatform(database, new MovableClock());
    const usage = { ofGroup: templatesOfGroup, customerHasUsers };
    const devices = createDeviceRegistry(
      ...([platform, createProfileReader(database), new RolloutMembership(platform.clock)] as const),
      usage,
    );
    const server = await startTestGateway((registry) => devices.register(registry), { testDatabase: test });
    try {
      const call = (path: string, body?: string) =>
        fetch(`${server.rest}/api/v1/devices${path}`, {
          method: body === undefined ? 'GET' : 'POST',
          headers: { authorization: 'Bearer admin', 'content-type': 'application/x-ndjson' },
          ...(body === undefined ? {} : { body }),
        }).then((response) => response.text());
      const lines = Array.from({ length: number }, (_, index) =>
        JSON.stringify({ hardware_id: `h${index}`, profile_id: idOf(index) }),
      );
      const report = await call('/import', lines.join('\n'));
      expect(report).to.include(`"created":${number}`);
      const page = JSON.parse(await call('')) as { devices: { effective_tags: Record<string, string> }[] };
      expect(page.devices.map((device) => device.effective_tags['place']!).sort()).to.deep.equal(
        Array.from({ length: number }, (_, index) => `=${index}`).sort(),
      );
      expect(await call('/export?format=ndjson')).to.include('"profile_name":"p19"');
      expect(bytes()).to.be.below(100_000);
    } finally {
      await server.stop();
    }
  });
});

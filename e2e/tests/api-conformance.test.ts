// API-wide rules for lists, ids and packages, tested over the real port where unit tests cannot.
import { expect } from 'chai';
import {
  admin,
  kubectl,
  makeArtifact,
  makeDevice,
  makePackage,
  makeProfile,
  otherAdmin,
  unique,
} from '../testing/fixtures.ts';

interface ErrorBody {
  code: string;
  message: string;
}
type Page = Record<string, Record<string, unknown>[]> & { next_page_token: string };

describe('conformance to the API', () => {
  describe('lists', () => {
    /** Returns the ids of a list read in pages of this size. Stops early if a page is repeated. */
    async function walk(path: string, field: string, id: string, size: number, most: number): Promise<unknown[]> {
      const ids: unknown[] = [];
      let token = '';
      do {
        const page = await (await admin()).get<Page>(`/api/v1/${path}`, { page_size: size, page_token: token });
        ids.push(...page[field]!.map((item) => item[id]));
        token = page.next_page_token;
      } while (token !== '' && ids.length <= most);
      return ids;
    }

    const lists: [path: () => Promise<string>, field: string, id: string, make: () => Promise<unknown>][] = [
      [
        async () => 'ota/packages',
        'packages',
        'package_id',
        async () => makePackage(await admin(), { version: '1.0.0' }),
      ],
      [async () => 'ota/rollouts', 'rollouts', 'rollout_id', makeRollout],
      [async () => 'profiles', 'profiles', 'profile_id', async () => makeProfile(await admin())],
      [async () => 'devices', 'devices', 'device_id', async () => makeDevice(await admin())],
      [async () => 'customers', 'customers', 'customer_id', async () => make('customers')],
      [async () => 'assets', 'assets', 'asset_id', async () => make('assets')],
      [
        async () => 'entity-views',
        'entity_views',
        'entity_view_id',
        async () => make('entity-views', { device_id: await someDevice() }),
      ],
      [async () => `devices/${await someDevice()}/rpc`, 'commands', 'correlation_id', sendCommand],
    ];
    let device: string | undefined;
    const someDevice = async (): Promise<string> => (device ??= (await makeDevice(await admin())).deviceId);
    const make = async (path: string, fields: object = {}) =>
      (await admin()).post(`/api/v1/${path}`, { name: unique('name'), ...fields });
    async function sendCommand(): Promise<void> {
      await (await admin()).post(`/api/v1/devices/${await someDevice()}/rpc`, { method: 'blink' });
    }
    async function makeRollout(): Promise<void> {
      const [{ package_id }, { profile_id }] = [
        await makePackage(await admin(), { version: '1.0.0' }),
        await makeProfile(await admin()),
      ];
      const body = { package_id, target_profile_id: profile_id, canary_percent: 10 };
      await (await admin()).post('/api/v1/ota/rollouts', body);
    }

    for (const [path, field, id, makeOne] of lists) {
      it(`lists each of the ${field} once, and ends after an exactly full last page`, async () => {
        for (let made = 0; made < 3; made += 1) await makeOne();
        const all = await walk(await path(), field, id, 500, 500);
        expect(new Set(all).size).to.equal(all.length).and.to.be.at.least(3);
        for (const size of [1, 2, all.length]) {
          expect(await walk(await path(), field, id, size, all.length), `pages of ${size}`).to.deep.equal(all);
        }
      });
    }

    const unknownId = '0192aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee';
    for (const [path, parameter] of [
      ['devices', 'profile_id'],
      ['devices', 'customer_id'],
      ['assets', 'customer_id'],
      ['assets', 'parent_asset_id'],
      ['entity-views', 'customer_id'],
      ['ota/rollouts', 'package_id'],
      ['ota/rollouts', 'target_profile_id'],
      ['verify/proofs', 'device_id'],
    ] as const) {
      it(`returns NOT_FOUND for an unknown ${parameter} of ${path}, naming it`, async () => {
        for (const value of [unknownId, 'none']) {
          const query = { [parameter]: value };
          const { status, body } = await (await admin()).send<ErrorBody>('GET', `/api/v1/${path}`, { query });
          expect({ status, code: body.code }).to.deep.equal({ status: 404, code: 'NOT_FOUND' });
          expect(body.message).to.contain(parameter);
        }
      });
    }
  });

  describe('packages', () => {
    const create = async (fields: Record<string, unknown>) =>
      (await admin()).send<ErrorBody & { size_bytes: number }>('POST', '/api/v1/ota/packages', {
        body: { name: unique('package'), type: 'fw', version: '1.0.0', ...fields },
      });

    it('are fetched from their own URL, even if another package has the same checksum', async () => {
      const { artifact } = await makePackage(await admin(), { version: '1.0.0' });
      const other = await makeArtifact();
      for (const uri of [other.uri, `${other.uri}.missing`]) {
        const { status, body } = await create({ artifact_uri: uri, sha256: artifact.sha256 });
        expect({ status, code: body.code }).to.deep.equal({ status: 400, code: 'INVALID_ARGUMENT' });
      }
    });

    it('can change their description, in REST and the cluster, but not their content', async () => {
      const made = await makePackage(await admin(), { version: '1.0.0', compatibility: { device_type: 'lamp' } });
      const other = await makePackage(await admin(), { version: '1.0.0' });
      const path = `/api/v1/ota/packages/${made.package_id}`;
      const patch = async (body: object) => (await admin()).send<ErrorBody>('PATCH', path, { body });
      const name = unique('renamed');
      expect((await patch({ name, release_notes: 'quieter', status: 'deprecated' })).body).to.deep.include({
        package_id: made.package_id,
        name,
        release_notes: 'quieter',
        status: 'deprecated',
        version: '1.0.0',
        compatibility: { device_type: 'lamp', min_version: '', max_version: '', hardware_id_pattern: '' },
      });
      const listed = await (
        await kubectl()
      ).json<{ items: { spec: object; status?: { packageId?: string } }[] }>(['get', 'otapkg']);
      const resource = listed.items.find(({ status }) => status?.packageId === made.package_id);
      expect(resource?.spec).to.include({ releaseNotes: 'quieter' });
      const kept = (await patch({ compatibility: { min_version: '0.9.0' } })).body;
      expect(kept).to.have.nested.property('compatibility.device_type', 'lamp');
      const emptied = { compatibility: { device_type: '', min_version: null }, status: 'available' };
      expect((await patch(emptied)).body).to.deep.include({
        release_notes: 'quieter',
        status: 'available',
        compatibility: { device_type: '', min_version: '', max_version: '', hardware_id_pattern: '' },
      });
      const { name: taken } = await (await admin()).get<{ name: string }>(`/api/v1/ota/packages/${other.package_id}`);
      const refused: [object, number, RegExp][] = [
        [{ version: '2.0.0' }, 400, /version/],
        [{ status: 'uploading' }, 400, /status/],
        [{ compatibility: { min_version: 'x' } }, 400, /min_version/],
        [{ name: '' }, 400, /name/],
        [{ name: taken }, 409, /exists/],
      ];
      for (const [body, status, message] of refused) {
        const response = await patch(body);
        expect({ body, status: response.status }).to.deep.equal({ body, status });
        expect(response.body.message).to.match(message);
      }
      expect((await (await otherAdmin()).send('PATCH', path, { body: { name } })).status).to.equal(404);
    });

    it('report the size of an artifact if it was not given', async () => {
      const artifact = await makeArtifact();
      const { status, body } = await create({ artifact_uri: artifact.uri, sha256: artifact.sha256 });
      expect(status, body.message).to.equal(200);
      expect(body.size_bytes).to.equal(artifact.sizeBytes);
    });
  });
});

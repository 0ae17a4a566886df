// How a manifest's artifact is handled: a server that does not have it yet, another artifact, and a recreated package.
import { createHash, generateKeyPairSync, sign } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { ListPackagesRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { insertTenant } from '../../../auth/testing/test-fixtures.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { countBytesRead } from '../../../platform/testing/bytes-read.ts';
import { createTestDatabase, type TestDatabase } from '../../../platform/testing/test-database.ts';
import { updateTenant } from '../../../tenants/tenant-store.ts';
import { recountRollouts } from '../rollouts/stores/rollout-store.ts';
import { testIntake } from '../testing/test-artifacts.ts';
import { Packages } from './packages.ts';

describe('the artifact of a manifest', () => {
  const artifact = Buffer.from('a build');
  const tenant = 'acme';
  const served = new Map<string, Buffer>();
  /** What a response waits for. */
  const held = new Map<string, () => Promise<void>>();
  let test: TestDatabase;
  let packages: Packages;
  let server: Server;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    packages = new Packages({
      compatibilityChanged: recountRollouts,
      database: test.database,
      writer: undefined as never,
      paging: new Paging(Buffer.alloc(32)),
      logger: createLogger('silent'),
      artifacts: testIntake(),
    });
    server = createServer((request, response) => {
      const content = served.get(request.url ?? '');
      const wait = held.get(request.url ?? '') ?? (() => Promise.resolve());
      void wait().then(() => response.writeHead(content ? 200 : 404).end(content));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  });
  after(async () => {
    await packages.stop();
    await new Promise((resolve) => server.close(resolve));
    await test.drop();
  });

  const meta = (name: string) => create(ObjectMetaSchema, { tenantId: tenant, namespace: 'n1', name });
  const apply = (name: string, path: string, sizeBytes = 0, releaseNotes = '') =>
    packages.apply(meta(name), {
      ...{ type: 'Firmware', version: '1.0.0', releaseNotes },
      artifact: {
        uri: `http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`,
        sha256: createHash('sha256').update(artifact).digest('hex'),
        sizeBytes,
      },
    });
  /** Applies until the first fetch has come to something. */
  const settled = async (name: string, path: string, sizeBytes = 0) => {
    for (;;) {
      const { observed, refusal } = await apply(name, path, sizeBytes);
      if (refusal || observed?.status !== 'uploading') return { status: observed?.status, refusal };
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  };

  it('is fetched again if its server does not have it yet', async () => {
    const { status, refusal } = await settled('early', '/early');
    expect(status).to.equal('uploading');
    expect(refusal).to.deep.equal({ reason: 'FetchFailed', message: "the artifact's server returned 404" });
  });

  it('is rejected if it is another one, until the package is deleted and made again from where it is right', async () => {
    served.set('/wrong', Buffer.from('malware'));
    served.set('/right', artifact);
    expect((await settled('moved', '/wrong')).refusal).to.include({ reason: 'ChecksumMismatch' });
    expect((await settled('moved', '/right')).refusal, 'no other address by itself').to.include({
      reason: 'ChecksumMismatch',
    });
    await packages.remove(meta('moved'), false);
    expect(await settled('moved', '/right')).to.deep.equal({ status: 'available', refusal: undefined });
  });

  it('is compared with what its own address serves, also if the store has the declared one', async () => {
    served.set('/right', artifact);
    served.set('/other', Buffer.from('another build'));
    expect(await settled('first', '/right')).to.include({ status: 'available' });
    expect((await settled('copied', '/other')).refusal).to.include({ reason: 'ChecksumMismatch' });
    expect((await settled('copied', '/other')).refusal, 'applied again').to.include({ reason: 'ChecksumMismatch' });
    expect((await settled('nowhere', '/nowhere')).refusal).to.include({ reason: 'FetchFailed' });
    served.set('/mirror', artifact);
    expect(await settled('second', '/mirror'), 'served as declared').to.include({ status: 'available' });
    served.delete('/mirror');
    expect(await settled('third', '/mirror'), 'served once').to.include({ status: 'available' });
  });

  it('is not verified by a former address that serves it late', async () => {
    served.set('/slow', artifact);
    const arrived = Promise.withResolvers<void>();
    const gate = Promise.withResolvers<void>();
    held.set('/slow', async () => {
      arrived.resolve();
      await gate.promise;
    });
    expect((await apply('hasty', '/slow')).observed?.status).to.equal('uploading');
    await arrived.promise;
    await packages.remove(meta('hasty'), false);
    await apply('hasty', '/never');
    gate.resolve();
    const { refusal } = await settled('hasty', '/never');
    expect(refusal).to.include({ reason: 'FetchFailed' });
    const { rows } = await test.database.system((tx) =>
      tx.query(`SELECT artifact_uri, checksum_verified FROM ota_packages WHERE name = 'hasty' AND deleted_at IS NULL`),
    );
    expect(rows).to.have.length(1);
    expect(rows[0]!['artifact_uri']).to.match(/never$/);
    expect(rows[0]!['checksum_verified']).to.equal(false);
  });

  it('is listed without repeating the keys that the tenant trusts', async () => {
    const { database, bytes } = countBytesRead(test.database);
    const listing = new Packages({
      compatibilityChanged: recountRollouts,
      database,
      writer: undefined as never,
      paging: new Paging(Buffer.alloc(32)),
      logger: createLogger('silent'),
      artifacts: testIntake(),
    });
    const { publicKey, privateKey } = generateKeyPairSync('ed25519');
    const pem = publicKey.export({ type: 'spki', format: 'pem' }).toString();
    const keys = Array.from({ length: 16 }, () => pem);
    await insertTenant(test.database, 'many');
    await test.database.system((tx) => updateTenant(tx, 'many', { trusted_signing_keys: keys }));
    const sha256 = createHash('sha256').update(artifact).digest();
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
           size_bytes, compatibility, status, checksum_verified)
         SELECT 'many', gen_random_uuid(), 'p' || n, 'p', 'fw', '1.0.0', '', $1, $2, 1, '{}', 'available', true
         FROM generate_series(1, 40) AS n`,
        [sha256, sign(null, sha256, privateKey).toString('base64')],
      ),
    );
    const { packages: found } = await listing.list(create(ListPackagesRequestSchema, {}), 'many');
    expect(found!.map(({ signatureVerified }) => signatureVerified)).to.deep.equal(
      Array.from({ length: 40 }, () => true),
    );
    expect(bytes()).to.be.below(60_000);
  });

  it('leaves its address and digest when its package is deleted, but not the notes', async () => {
    served.set('/right', artifact);
    await apply('noted', '/right', artifact.length, 'x'.repeat(10_000));
    await packages.remove(meta('noted'), false);
    const { rows } = await test.database.system((tx) =>
      tx.query(`SELECT release_notes, artifact_uri <> '' AS has_address FROM ota_packages WHERE name = 'noted'`),
    );
    expect(rows).to.deep.equal([{ release_notes: '', has_address: true }]);
  });

  it('may have another size once the package is created again', async () => {
    served.set('/right', artifact);
    expect((await settled('sized', '/right', 3)).refusal?.message).to.match(/size_bytes/);
    await packages.remove(meta('sized'), false);
    expect(await settled('sized', '/right', artifact.length)).to.include({ status: 'available' });
  });

  it('does not look changed when its package is applied again', async () => {
    served.set('/right', artifact);
    await settled('steady', '/right');
    const changedAt = async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ at: Date }>(`SELECT updated_at AS at FROM ota_packages WHERE name = 'steady'`),
      );
      return rows[0]!.at.getTime();
    };
    const before = await changedAt();
    await new Promise((resolve) => setTimeout(resolve, 5));
    await apply('steady', '/right');
    expect(await changedAt()).to.equal(before);
    await apply('steady', '/elsewhere');
    expect(await changedAt()).to.be.above(before);
  });
});

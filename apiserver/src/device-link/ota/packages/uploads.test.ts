// Uploads of artifacts on a real database, into each of the stores: whole, in parts, broken off, repeated, wrong.
import { createHash, generateKeyPairSync, randomBytes, sign } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { create } from '@bufbuild/protobuf';
import type { OtaPackageSpec } from '@kellet/crds';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { OtaPackage_Status, UploadArtifactRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { insertTenant } from '../../../auth/testing/test-fixtures.ts';
import { KelletError } from '../../../platform/errors.ts';
import { namedId } from '../../../platform/ids.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { internalContext, publicCaller } from '../../../platform/rpc.ts';
import { eventually } from '../../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../../platform/testing/test-database.ts';
import { TestS3 } from '../../../platform/testing/test-s3.ts';
import { ArtifactStores } from '../artifacts/artifact-stores.ts';
import { recountRollouts } from '../rollouts/stores/rollout-store.ts';
import { testIntake } from '../testing/test-artifacts.ts';
import { Packages } from './packages.ts';

const tenant = 'acme';
const mebibyte = 1024 * 1024;

for (const store of ['postgres', 'a folder', 'S3']) describeStore(store);

function describeStore(where: string): void {
  describe(`uploads of artifacts into ${where}`, () => {
    let test: TestDatabase;
    let s3: TestS3 | undefined;
    let folder: string;
    let packages: Packages;
    let count = 0;

    before(async () => {
      test = await createTestDatabase();
      folder = await mkdtemp(join(tmpdir(), 'kellet-artifacts-'));
      if (where === 'S3') s3 = await TestS3.start('artifacts');
      const none = { endpoint: '', region: '', accessKey: '', secretKey: '' };
      const name = s3 ? 's3://artifacts/kellet' : where === 'postgres' ? where : pathToFileURL(folder).href;
      for (const tenantId of ['acme', 'other']) await insertTenant(test.database, tenantId);
      packages = new Packages({
        compatibilityChanged: recountRollouts,
        database: test.database,
        // Creation through REST is tested on the whole system; nothing here reaches it.
        writer: undefined as never,
        paging: new Paging(Buffer.alloc(32)),
        logger: createLogger('silent'),
        artifacts: testIntake({ stores: new ArtifactStores(name, s3?.settings ?? none) }),
      });
    });
    after(async () => {
      await packages.stop();
      await s3?.stop();
      await rm(folder, { recursive: true, force: true });
      await test.drop();
    });

    const uploaded = (artifact: OtaPackageSpec['artifact']) =>
      ({ type: 'Firmware', version: '1.0.0', artifact }) as const;

    /** A package that waits for this artifact. */
    const waiting = async (
      artifact: Buffer,
      fields: Partial<OtaPackageSpec['artifact']> = {},
    ): Promise<{ id: string; name: string; sha256: Buffer }> => {
      const name = `upload-${(count += 1)}`;
      const sha256 = createHash('sha256').update(artifact).digest();
      const spec = uploaded({
        uri: 'upload://',
        sha256: sha256.toString('hex'),
        sizeBytes: artifact.length,
        ...fields,
      });
      const { id, observed, refusal } = await packages.apply(meta(name), spec);
      expect({ observed, refusal }).to.deep.include({ refusal: undefined });
      expect(observed).to.include({ status: 'uploading', checksumVerified: false, message: '' });
      return { id, name, sha256 };
    };
    const meta = (name: string) => create(ObjectMetaSchema, { tenantId: tenant, namespace: 'n1', name });

    const upload = (
      packageId: string,
      bytes: Buffer | AsyncIterable<Buffer>,
      options: { contentRange?: string; tenantId?: string } = {},
    ) => {
      const pieces = Buffer.isBuffer(bytes) ? inPieces(bytes) : bytes;
      const requests = async function* () {
        yield create(UploadArtifactRequestSchema, { packageId });
        for await (const data of pieces) yield create(UploadArtifactRequestSchema, { content: { data } });
      };
      const metadata = new Map(options.contentRange ? [['content-range', options.contentRange]] : []);
      const tenantId = options.tenantId ?? tenant;
      return packages.upload(requests(), internalContext({ ...publicCaller, kind: 'user', tenantId }, { metadata }));
    };
    const partOf = (artifact: Buffer, start: number, end: number): [Buffer, { contentRange: string }] => [
      artifact.subarray(start, end),
      { contentRange: `bytes ${start}-${end - 1}/${artifact.length}` },
    ];
    const failure = async (work: Promise<unknown>, code: string, message: RegExp) => {
      const error = await work.then(
        () => undefined,
        (thrown: unknown) => thrown,
      );
      expect(error).to.be.instanceOf(KelletError).that.includes({ code });
      expect((error as Error).message).to.match(message);
    };
    const stored = async (sha256: Buffer, size: number): Promise<Buffer> => {
      const chunks: Buffer[] = [];
      for (let at = 0; at < size; at += 65_536) {
        chunks.push(await packages.reader.read(tenant, sha256, at, 65_536));
      }
      return Buffer.concat(chunks);
    };
    /** Bytes of all artifacts that are on their way. */
    const arriving = (): Promise<number> =>
      test.database.system(async (tx) => {
        const { rows } = await tx.query<{ bytes: number }>(
          `SELECT coalesce(sum(bytes), 0)::float8 AS bytes FROM (
           SELECT length(data) AS bytes FROM artifact_chunks WHERE length(sha256) = 16 UNION ALL
           SELECT size_bytes FROM artifact_parts WHERE length(sha256) = 16) AS arriving`,
        );
        return rows[0]!.bytes;
      });

    it('take a whole artifact, check it and keep it', async () => {
      const artifact = randomBytes(2 * mebibyte + 777);
      const { id, sha256 } = await waiting(artifact);
      const done = await upload(id, artifact);
      expect(done).to.include({
        status: OtaPackage_Status.available,
        checksumVerified: true,
        uploadedBytes: artifact.length,
        sizeBytes: artifact.length,
      });
      expect((await stored(sha256, artifact.length)).equals(artifact)).to.equal(true);
      expect(await arriving()).to.equal(0);
    });

    it('are deleted if they are not continued for a day', async () => {
      const artifact = randomBytes(200_000);
      const [abandoned, recent] = [await waiting(artifact), await waiting(artifact)];
      for (const { id } of [abandoned, recent]) await upload(id, ...partOf(artifact, 0, 100_000));
      const ageBy = (id: string, age: string) =>
        test.database.system((tx) =>
          tx.query(
            `UPDATE artifacts SET touched_at = now() - $2::interval FROM ota_packages
           WHERE artifacts.sha256 = ota_packages.staging_key AND package_id = $1`,
            [id, age],
          ),
        );
      await ageBy(abandoned.id, '25 hours');
      await ageBy(recent.id, '23 hours');
      await packages.start();
      await eventually(async () => (await arriving()) === 100_000);
      expect(await packages.get(tenant, abandoned.id)).to.include({ uploadedBytes: 0 });
      await failure(
        upload(abandoned.id, ...partOf(artifact, 100_000, 200_000)),
        'FAILED_PRECONDITION',
        /begins at byte 0$/,
      );
      for (const { id, start } of [
        { ...abandoned, start: 0 },
        { ...recent, start: 100_000 },
      ]) {
        expect(await upload(id, ...partOf(artifact, start, 200_000))).to.include({
          status: OtaPackage_Status.available,
        });
      }
    });

    it('take parts in order, skip what they have, and say where to go on', async () => {
      const artifact = randomBytes(300_001);
      const { id, sha256 } = await waiting(artifact);
      expect(await upload(id, ...partOf(artifact, 0, 100_000))).to.include({
        status: OtaPackage_Status.uploading,
        uploadedBytes: 100_000,
      });
      expect(await packages.get(tenant, id)).to.include({ uploadedBytes: 100_000 });
      await failure(upload(id, ...partOf(artifact, 150_000, 200_000)), 'FAILED_PRECONDITION', /begins at byte 100000$/);
      expect(await upload(id, ...partOf(artifact, 0, 100_000))).to.include({ uploadedBytes: 100_000 });
      expect(await upload(id, ...partOf(artifact, 50_000, 200_000))).to.include({ uploadedBytes: 200_000 });
      expect(await upload(id, ...partOf(artifact, 200_000, 300_001))).to.include({
        status: OtaPackage_Status.available,
        uploadedBytes: 300_001,
      });
      expect((await stored(sha256, artifact.length)).equals(artifact)).to.equal(true);
      // A repeat of the last part, whose response was lost.
      expect(await upload(id, ...partOf(artifact, 200_000, 300_001))).to.include({
        status: OtaPackage_Status.available,
      });
    });

    it('keep what arrived before the connection was lost', async () => {
      const artifact = randomBytes(3 * mebibyte);
      const { id, sha256 } = await waiting(artifact);
      const brokenOff = (async function* () {
        yield artifact.subarray(0, 2 * mebibyte + 5);
        throw new KelletError('INVALID_ARGUMENT', 'the body ended early');
      })();
      await failure(upload(id, brokenOff), 'INVALID_ARGUMENT', /ended early/);
      const { uploadedBytes = 0 } = await packages.get(tenant, id);
      expect(uploadedBytes).to.equal(2 * mebibyte + 5);
      expect(await upload(id, ...partOf(artifact, uploadedBytes, artifact.length))).to.include({
        status: OtaPackage_Status.available,
      });
      expect((await stored(sha256, artifact.length)).equals(artifact)).to.equal(true);
    });

    it('reject another artifact than the declared one, and may begin again', async () => {
      const artifact = randomBytes(70_000);
      const { id, name, sha256 } = await waiting(artifact);
      await failure(upload(id, randomBytes(70_000)), 'INVALID_ARGUMENT', /checksum mismatch/);
      expect(await packages.get(tenant, id)).to.include({ status: OtaPackage_Status.rejected, uploadedBytes: 0 });
      const spec = uploaded({
        uri: 'upload://',
        sha256: sha256.toString('hex'),
        sizeBytes: 70_000,
      });
      expect((await packages.apply(meta(name), spec)).refusal).to.include({ reason: 'ChecksumMismatch' });
      expect(await arriving()).to.equal(0);
      await failure(upload(id, ...partOf(artifact, 10, 20)), 'FAILED_PRECONDITION', /begins at byte 0$/);
      expect(await upload(id, artifact)).to.include({ status: OtaPackage_Status.available });
      expect((await packages.apply(meta(name), spec)).refusal).to.equal(undefined);
    });

    it('replace earlier parts with the whole artifact', async () => {
      const artifact = randomBytes(70_000);
      const { id } = await waiting(artifact);
      await upload(id, ...partOf(randomBytes(70_000), 0, 40_000));
      expect(await upload(id, artifact)).to.include({ status: OtaPackage_Status.available });
    });

    it('use the size that the parts state if the package states none', async () => {
      const artifact = randomBytes(1000);
      const { id } = await waiting(artifact, { sizeBytes: 0 });
      expect(await upload(id, artifact.subarray(0, 600), { contentRange: 'bytes 0-599/*' })).to.include({
        uploadedBytes: 600,
      });
      expect(await upload(id, ...partOf(artifact, 600, 1000))).to.include({
        status: OtaPackage_Status.available,
        sizeBytes: 1000,
      });
      const whole = randomBytes(2000);
      const other = await waiting(whole, { sizeBytes: 0 });
      expect(await upload(other.id, whole)).to.include({ status: OtaPackage_Status.available, sizeBytes: 2000 });
    });

    it('are completed by a request without bytes if all are held and only the completion failed', async () => {
      const artifact = randomBytes(1000);
      const { id } = await waiting(artifact);
      const ddl = (sql: string) => test.database.system((tx) => tx.query(sql));
      await ddl(
        `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END'`,
      );
      await ddl(`CREATE TRIGGER refuse BEFORE UPDATE ON ota_packages FOR EACH ROW
      WHEN (OLD.staging_key IS NOT NULL AND NEW.staging_key IS NULL) EXECUTE FUNCTION refuse()`);
      try {
        const failed = await upload(id, ...partOf(artifact, 0, 1000)).catch((error: Error) => error.message);
        expect(failed).to.match(/refused/);
      } finally {
        await ddl('DROP FUNCTION refuse CASCADE');
      }
      const contentRange = 'bytes */1000';
      expect(await packages.get(tenant, id)).to.include({ status: OtaPackage_Status.uploading, uploadedBytes: 1000 });
      await failure(upload(id, randomBytes(1), { contentRange }), 'INVALID_ARGUMENT', /beyond byte 1000/);
      for (let times = 0; times < 2; times += 1) {
        const complete = await upload(id, Buffer.alloc(0), { contentRange });
        expect(complete).to.include({ status: OtaPackage_Status.available, checksumVerified: true });
      }
    });

    it('refuse more, less and other than was declared', async () => {
      const artifact = randomBytes(1000);
      const { id } = await waiting(artifact);
      await failure(upload(id, randomBytes(1001)), 'INVALID_ARGUMENT', /beyond byte 1000/);
      await failure(upload(id, randomBytes(999)), 'INVALID_ARGUMENT', /has 999 bytes, size_bytes says 1000/);
      const range = (contentRange: string) => upload(id, artifact.subarray(0, 10), { contentRange });
      await failure(range('bytes 0-10/1000'), 'INVALID_ARGUMENT', /has 10 bytes, Content-Range says 11/);
      await failure(range('bytes 0-8/1000'), 'INVALID_ARGUMENT', /beyond byte 9/);
      await failure(range('bytes 0-9/1001'), 'INVALID_ARGUMENT', /1000 bytes by its size_bytes, 1001 by the request/);
      await failure(range('bytes 0-9/99999999999'), 'INVALID_ARGUMENT', /size_bytes/);
      await failure(range('bytes */*'), 'INVALID_ARGUMENT', /Content-Range/);
      await failure(
        upload(id, Buffer.alloc(0), { contentRange: 'bytes */1000' }),
        'FAILED_PRECONDITION',
        /begins at byte/,
      );
      expect(await upload(id, artifact)).to.include({ status: OtaPackage_Status.available });
      await failure(upload(id, randomBytes(1000)), 'INVALID_ARGUMENT', /another artifact already/);
      expect(await upload(id, artifact)).to.include({ status: OtaPackage_Status.available });
    });

    it('reject a signature that no trusted key made, once the artifact is there', async () => {
      const trusted = generateKeyPairSync('ed25519');
      const artifact = randomBytes(500);
      const digest = createHash('sha256').update(artifact).digest();
      const foreign = sign(null, digest, generateKeyPairSync('ed25519').privateKey).toString('base64');
      const { id } = await waiting(artifact, { signature: foreign });
      const key = trusted.publicKey.export({ type: 'spki', format: 'pem' });
      await test.database.system((tx) =>
        tx.query(`UPDATE tenants SET trusted_signing_keys = ARRAY[$1] WHERE tenant_id = $2`, [key, tenant]),
      );
      await failure(upload(id, artifact), 'INVALID_ARGUMENT', /signature/);
      expect(await packages.get(tenant, id)).to.include({ status: OtaPackage_Status.rejected, checksumVerified: true });
      await failure(upload(id, artifact), 'FAILED_PRECONDITION', /rejected: the signature/);
      const signed = randomBytes(500);
      const right = sign(null, createHash('sha256').update(signed).digest(), trusted.privateKey).toString('base64');
      const other = await waiting(signed, { signature: right });
      expect(await upload(other.id, signed)).to.include({ signatureVerified: true });
    });

    it('accept one of several concurrent requests, and the artifact is whole', async () => {
      const artifact = randomBytes(5 * mebibyte);
      const { id, sha256 } = await waiting(artifact);
      const outcomes = await Promise.allSettled([upload(id, artifact), upload(id, artifact), upload(id, artifact)]);
      for (const outcome of outcomes) {
        if (outcome.status === 'rejected') expect(outcome.reason).to.include({ code: 'ABORTED' });
      }
      expect(await upload(id, artifact)).to.include({ status: OtaPackage_Status.available });
      expect((await stored(sha256, artifact.length)).equals(artifact)).to.equal(true);
    });

    it('are only for packages of the tenant that are uploaded', async () => {
      const artifact = randomBytes(10);
      const { id } = await waiting(artifact);
      await failure(upload(id, artifact, { tenantId: 'other' }), 'NOT_FOUND', /package_id/);
      await failure(upload('nothing', artifact), 'NOT_FOUND', /package_id/);
      const spec = uploaded({
        uri: 'https://127.0.0.1.invalid/x',
        sha256: 'ab'.repeat(32),
      });
      await packages.apply(meta('fetched'), spec);
      await failure(
        upload(namedId(tenant, 'package', 'fetched'), artifact),
        'FAILED_PRECONDITION',
        /artifact_uri is https:/,
      );
    });

    it('may have another size once the package was deleted and made again', async () => {
      const artifact = randomBytes(1000);
      const { id, name } = await waiting(artifact, { sizeBytes: 999 });
      await failure(upload(id, artifact), 'INVALID_ARGUMENT', /beyond byte 999/);
      await packages.remove(meta(name), false);
      const spec = uploaded({
        uri: 'upload://',
        sha256: createHash('sha256').update(artifact).digest('hex'),
        sizeBytes: 1000,
      });
      expect((await packages.apply(meta(name), spec)).observed).to.include({ status: 'uploading', message: '' });
      expect(await upload(id, artifact)).to.include({ status: OtaPackage_Status.available, sizeBytes: 1000 });
    });

    it('leave nothing when the package is deleted', async () => {
      const artifact = randomBytes(100);
      const { id, name } = await waiting(artifact);
      await upload(id, ...partOf(artifact, 0, 50));
      expect(await arriving()).to.equal(50);
      await packages.remove(meta(name), false);
      expect(await arriving()).to.equal(0);
      await failure(upload(id, artifact), 'NOT_FOUND', /package_id/);
    });
  });

  async function* inPieces(bytes: Buffer): AsyncIterable<Buffer> {
    for (let at = 0; at < bytes.length; at += 50_000) yield bytes.subarray(at, at + 50_000);
  }
}

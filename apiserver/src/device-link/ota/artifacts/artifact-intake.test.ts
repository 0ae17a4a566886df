// Artifacts into the content store and out of it, on a real database and from real servers: quotas, turns, faults, the sweep.
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { OtaPackage_Status, UploadArtifactRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { insertTenant } from '../../../auth/testing/test-fixtures.ts';
import { sleep } from '../../../platform/clock.ts';
import { Database } from '../../../platform/database/database.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { createMetrics } from '../../../platform/observability/metrics.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { internalContext, publicCaller } from '../../../platform/rpc.ts';
import { eventually } from '../../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../../platform/testing/test-database.ts';
import { setPackageAvailability } from '../packages/package-store.ts';
import { Packages } from '../packages/packages.ts';
import { recountRollouts } from '../rollouts/stores/rollout-store.ts';
import { putArtifact, testIntake } from '../testing/test-artifacts.ts';
import { ArtifactError } from './artifact-error.ts';
import { ArtifactIntake, type IntakeSettings } from './artifact-intake.ts';
import { inDatabase, lockArtifact, removeArtifact, stageArtifact } from './artifact-store.ts';

const signal = new AbortController().signal;
const logger = createLogger('silent');

describe('the intake of artifacts', () => {
  let test: TestDatabase;
  let server: Server;
  let base: string;
  const served = new Map<string, Buffer>();
  /** Replaces the default response. */
  let listener: RequestListener | undefined;
  const made: { stop(): Promise<void> }[] = [];
  let tenants = 0;

  before(async () => {
    test = await createTestDatabase();
    server = createServer((request, response) => {
      if (listener) return listener(request, response);
      const content = served.get(request.url ?? '');
      response.writeHead(content ? 200 : 404).end(content);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterEach(async () => {
    listener = undefined;
    for (const one of made.splice(0)) await one.stop();
  });
  after(async () => {
    server.closeAllConnections();
    server.close();
    await test.drop();
  });

  const newTenant = async (storageBytes = 0): Promise<string> => {
    const tenantId = `t${(tenants += 1)}`;
    await insertTenant(test.database, tenantId, { quotas: { storage_bytes: storageBytes } });
    return tenantId;
  };
  const intakeOf = (overrides: Partial<IntakeSettings> = {}) => {
    const intake = new ArtifactIntake(test.database, logger, testIntake(overrides));
    made.push(intake);
    return intake;
  };
  const packagesOf = (overrides: Partial<IntakeSettings> = {}, database = test.database) => {
    const packages = new Packages({
      compatibilityChanged: recountRollouts,
      ...{ database, writer: undefined as never, paging: new Paging(Buffer.alloc(32)), logger },
      artifacts: testIntake({ unusedSeconds: 0, ...overrides }),
    });
    made.push(packages);
    return packages;
  };
  /** Bytes that are served under an address of their own. */
  const publish = (bytes: Buffer) => {
    const sha256 = createHash('sha256').update(bytes).digest();
    served.set(`/${sha256.toString('hex')}`, bytes);
    return { sha256, sizeBytes: bytes.length, uri: `${base}/${sha256.toString('hex')}` };
  };
  const outcome = (work: Promise<unknown>): Promise<{ code?: string; message?: string } | undefined> =>
    work.then(
      () => undefined,
      (error: unknown) => error as { code?: string; message?: string },
    );
  const artifactsOf = (tenantId: string) =>
    test.database.system(async (tx) => {
      const { rows } = await tx.query<{ staged: boolean; size_bytes: bigint; chunks: bigint }>(
        `SELECT staged, size_bytes, (SELECT count(*) FROM artifact_chunks AS chunk
           WHERE chunk.tenant_id = artifacts.tenant_id AND chunk.sha256 = artifacts.sha256) AS chunks
         FROM artifacts WHERE tenant_id = $1`,
        [tenantId],
      );
      return rows.map((row) => ({ staged: row.staged, size: Number(row.size_bytes), chunks: Number(row.chunks) }));
    });
  const meta = (tenantId: string, name: string) => create(ObjectMetaSchema, { tenantId, namespace: tenantId, name });
  const specOf = (artifact: { sha256: Buffer; sizeBytes: number; uri: string }) => ({
    type: 'Firmware' as const,
    version: '1.0.0',
    artifact: { ...artifact, sha256: artifact.sha256.toString('hex') },
  });
  const applyUntil = async (
    packages: Packages,
    tenantId: string,
    name: string,
    artifact: Parameters<typeof specOf>[0],
    isDone: (observed: { status?: string; checksumVerified?: boolean }) => boolean,
  ) => {
    let id = '';
    await eventually(async () => {
      const applied = await packages.apply(meta(tenantId, name), specOf(artifact));
      id = applied.id;
      return isDone(applied.observed ?? {});
    });
    return id;
  };
  const upload = (packages: Packages, tenantId: string, packageId: string, content: AsyncIterable<Buffer>) => {
    const requests = async function* () {
      yield create(UploadArtifactRequestSchema, { packageId });
      for await (const data of content) yield create(UploadArtifactRequestSchema, { content: { data } });
    };
    return packages.upload(requests(), internalContext({ ...publicCaller, kind: 'user', tenantId }));
  };
  async function* inPieces(bytes: Buffer): AsyncIterable<Buffer> {
    for (let at = 0; at < bytes.length; at += 50_000) yield bytes.subarray(at, at + 50_000);
  }

  it('stores what it fetches byte by byte, and nothing of what is another artifact', async () => {
    const tenant = await newTenant();
    const intake = intakeOf();
    const bytes = randomBytes(3 * 1024 * 1024 + 12_345);
    const { uri, ...declared } = publish(bytes);
    await intake.fetch(tenant, uri, declared, { signal });
    const read = async (offset: number, length: number) =>
      (await intake.reader.read(tenant, declared.sha256, offset, length)).equals(
        bytes.subarray(offset, offset + length),
      );
    expect(await read(0, bytes.length)).to.equal(true);
    expect(await read(65_530, 20)).to.equal(true);
    expect(await artifactsOf(tenant)).to.deep.equal([{ staged: false, size: bytes.length, chunks: 49 }]);
    served.set(new URL(uri).pathname, randomBytes(bytes.length));
    expect(await outcome(intake.fetch(tenant, uri, declared, { signal })), 'the address must serve what it should')
      .to.be.instanceOf(ArtifactError)
      .with.property('message')
      .match(/checksum mismatch/);
    const other = { ...declared, sha256: randomBytes(32) };
    expect(await outcome(intake.fetch(tenant, uri, other, { signal }))).to.be.instanceOf(ArtifactError);
    expect(await artifactsOf(tenant)).to.have.length(1);
  });

  it('enforces a tenant’s quota exactly, however many artifacts arrive at once', async () => {
    const tenant = await newTenant(350_000);
    const intake = intakeOf({ transfersPerTenant: 10 });
    const outcomes = await Promise.all(
      Array.from({ length: 10 }, async (_, index) => {
        const { uri, sha256 } = publish(randomBytes(100_000));
        // Half of them do not state their size.
        return outcome(intake.fetch(tenant, uri, { sha256, sizeBytes: index % 2 === 0 ? 100_000 : 0 }, { signal }));
      }),
    );
    const refused = outcomes.filter((one) => one !== undefined);
    expect(refused).to.have.length(7);
    for (const one of refused) {
      expect(one).to.include({ code: 'RESOURCE_EXHAUSTED' });
      expect(one.message).to.match(/quota of storage_bytes is used up: its artifacts take \d+ of 350000 bytes/);
    }
    const stored = await artifactsOf(tenant);
    expect(stored.map(({ staged, size }) => ({ staged, size }))).to.deep.equal(
      Array.from({ length: 3 }, () => ({ staged: false, size: 100_000 })),
    );
    const fits = publish(randomBytes(50_000));
    await intake.fetch(tenant, fits.uri, fits, { signal });
    const other = await newTenant(50_000);
    await intake.fetch(other, fits.uri, fits, { signal });
  });

  it('stores nothing for a tenant that is purged while a fetch waits for its turn or for the server', async () => {
    const tenantId = await newTenant();
    const artifact = publish(randomBytes(1000));
    let respond: (() => void) | undefined;
    listener = (request, response) => (respond = () => response.end(served.get(request.url ?? '')));
    const fetching = outcome(intakeOf().fetch(tenantId, artifact.uri, artifact, { signal }));
    await eventually(() => respond !== undefined);
    await test.database.system((tx) =>
      tx.query(
        `UPDATE tenants SET deleted_at = now(), purge_at = now(), purge_started_at = now() WHERE tenant_id = $1`,
        [tenantId],
      ),
    );
    respond!();
    expect((await fetching)?.code).to.equal('PERMISSION_DENIED');
    expect(await artifactsOf(tenantId)).to.deep.equal([]);
  });

  it('rejects an artifact of unknown length when it outgrows the quota, and keeps nothing of it', async () => {
    const tenant = await newTenant(1_500_000);
    const bytes = randomBytes(3_000_000);
    listener = (_request, response) => {
      response.write(bytes.subarray(0, 10));
      response.end(bytes.subarray(10));
    };
    const declared = { sha256: createHash('sha256').update(bytes).digest(), sizeBytes: 0 };
    expect(await outcome(intakeOf().fetch(tenant, base, declared, { signal }))).to.include({
      code: 'RESOURCE_EXHAUSTED',
    });
    expect(await artifactsOf(tenant)).to.deep.equal([]);
  });

  it('enforces the quota on uploads too, and what has come of others counts', async () => {
    const tenant = await newTenant(1_000_000);
    const packages = packagesOf();
    const [one, two] = [publish(randomBytes(600_000)), publish(randomBytes(600_000))];
    const idOf = async (name: string, artifact: typeof one) =>
      (await packages.apply(meta(tenant, name), specOf({ ...artifact, uri: 'upload://' }))).id;
    const [first, second] = [await idOf('one', one), await idOf('two', two)];
    const brokenOff = (async function* () {
      yield randomBytes(100_000);
      throw new Error('the connection broke off');
    })();
    expect(await outcome(upload(packages, tenant, first, brokenOff))).to.have.property(
      'message',
      'the connection broke off',
    );
    expect(
      await outcome(upload(packages, tenant, second, inPieces(served.get(new URL(two.uri).pathname)!))),
    ).to.include({
      code: 'RESOURCE_EXHAUSTED',
    });
    await packages.remove(meta(tenant, 'one'), false);
    expect(await upload(packages, tenant, second, inPieces(served.get(new URL(two.uri).pathname)!))).to.include({
      status: OtaPackage_Status.available,
    });
  });

  it('fetches so many at a time, of a tenant and in all, and says whose turn it is', async () => {
    const [tenant, other, third] = [await newTenant(), await newTenant(), await newTenant()];
    const intake = intakeOf({ transfers: 3, transfersPerTenant: 2, waitMilliseconds: 50 });
    let proceed: () => void = () => undefined;
    const held = new Promise<void>((resolve) => (proceed = resolve));
    let [now, most] = [0, 0];
    listener = (request, response) => {
      most = Math.max(most, (now += 1));
      void held.then(() => {
        now -= 1;
        response.end(served.get(request.url!));
      });
    };
    const fetchFor = (tenantId: string, isPatient = false) => {
      const { uri, ...declared } = publish(randomBytes(100));
      return outcome(intake.fetch(tenantId, uri, declared, { signal, isPatient }));
    };
    const running = [fetchFor(tenant), fetchFor(tenant)];
    const refused = await fetchFor(tenant);
    expect(refused).to.include({ code: 'RESOURCE_EXHAUSTED', retryAfterSeconds: 5 });
    expect(refused?.message).to.match(/2 artifacts on their way already/);
    running.push(fetchFor(other));
    expect(await fetchFor(third)).to.include({ code: 'UNAVAILABLE' });
    const patient = [fetchFor(tenant, true), fetchFor(third, true)];
    await eventually(() => now === 3);
    proceed();
    expect(await Promise.all([...running, ...patient])).to.deep.equal(Array.from({ length: 5 }, () => undefined));
    expect(most).to.equal(3);
  });

  it('gives up transfers of tenants with many for one that has waited, however slow their servers and clients are', async () => {
    const [one, two, third] = [await newTenant(), await newTenant(), await newTenant()];
    const few = { transfers: 4, transfersPerTenant: 2, askMilliseconds: 100 };
    const [intake, packages] = [intakeOf(few), packagesOf(few)];
    const bytes = randomBytes(100_000);
    listener = (request, response) => {
      if (request.url !== '/drip') return response.end(served.get(request.url!));
      const timer = setInterval(() => response.write('x'), 10);
      response.once('close', () => clearInterval(timer));
    };
    const drip = (tenantId: string) =>
      outcome(intake.fetch(tenantId, `${base}/drip`, { sha256: randomBytes(32), sizeBytes: 0 }, { signal }));
    const fetches = [drip(one), drip(two), drip(two), drip(one)];
    const { uri, ...declared } = publish(randomBytes(100));
    await intake.fetch(third, uri, declared, { signal });
    const given = await Promise.race(fetches);
    expect(given).to.include({ code: 'UNAVAILABLE' });
    expect(given!.message).to.match(/given way to another tenant/);

    const begin = async (tenantId: string, name: string) => {
      const artifact = publish(bytes);
      return (await packages.apply(meta(tenantId, name), specOf({ ...artifact, uri: 'upload://' }))).id;
    };
    const ended = new AbortController();
    const slowly = async function* () {
      yield bytes.subarray(0, 40_000);
      await new Promise((resolve) => ended.signal.addEventListener('abort', resolve));
    };
    const uploads: { tenantId: string; id: string; outcome: Promise<unknown> }[] = [];
    for (const tenantId of [one, two, two, one]) {
      const id = await begin(tenantId, `slow-${uploads.length}`);
      uploads.push({ tenantId, id, outcome: outcome(upload(packages, tenantId, id, slowly())) });
    }
    const id = await begin(third, 'quick');
    expect(await upload(packages, third, id, inPieces(bytes))).to.include({ status: OtaPackage_Status.available });
    const left = await Promise.race(uploads.map(async (each) => ({ ...each, outcome: await each.outcome })));
    expect(left.outcome).to.include({ code: 'UNAVAILABLE' });
    expect(await packages.get(left.tenantId, left.id), 'what has come is kept').to.include({ uploadedBytes: 40_000 });
    ended.abort();
    await Promise.all(uploads.map(({ outcome: over }) => over));
  });

  it('lets no server occupy a slot indefinitely', async () => {
    const [tenant, other] = [await newTenant(), await newTenant()];
    const pace = { totalMilliseconds: 150, idleMilliseconds: 100, bytesPerSecond: 1, graceMilliseconds: 0 };
    const intake = intakeOf({ transfers: 1, transfersPerTenant: 1, pace });
    listener = (request, response) => {
      if (request.url !== '/drip') return response.end(served.get(request.url!));
      const timer = setInterval(() => response.write('x'), 10);
      response.once('close', () => clearInterval(timer));
    };
    const slow = outcome(intake.fetch(tenant, `${base}/drip`, { sha256: randomBytes(32), sizeBytes: 0 }, { signal }));
    const { uri, ...declared } = publish(randomBytes(100));
    await intake.fetch(other, uri, declared, { signal });
    expect((await slow)?.message).to.match(/too slow/);
    expect(await artifactsOf(tenant)).to.deep.equal([]);
  });

  it('ends uploads that are too slow, and keeps what has come', async () => {
    const tenant = await newTenant();
    const packages = packagesOf({ pace: { idleMilliseconds: 100 } });
    const bytes = randomBytes(100_000);
    const artifact = publish(bytes);
    const { id } = await packages.apply(meta(tenant, 'slow'), specOf({ ...artifact, uri: 'upload://' }));
    const stalls = (async function* () {
      yield bytes.subarray(0, 40_000);
      await sleep(1000);
    })();
    expect(await outcome(upload(packages, tenant, id, stalls))).to.include({ code: 'DEADLINE_EXCEEDED' });
    expect(await packages.get(tenant, id)).to.include({ uploadedBytes: 40_000 });
    const silent = (async function* () {
      await sleep(1000);
      yield create(UploadArtifactRequestSchema, { packageId: id });
    })();
    const context = internalContext({ ...publicCaller, kind: 'user', tenantId: tenant });
    expect(await outcome(packages.upload(silent, context))).to.include({ code: 'DEADLINE_EXCEEDED' });
  });

  it('needs no second connection for an upload', async () => {
    const tenant = await newTenant();
    const few = new Database(test.url, logger, { maximumConnections: 2 });
    made.push({ stop: () => few.close() });
    const packages = packagesOf({ transfersPerTenant: 16 }, few);
    const uploads = Array.from({ length: 12 }, async (_, index) => {
      const bytes = randomBytes(1_200_000);
      const { id } = await packages.apply(
        meta(tenant, `many-${index}`),
        specOf({ ...publish(bytes), uri: 'upload://' }),
      );
      return upload(packages, tenant, id, inPieces(bytes));
    });
    for (const done of await Promise.all(uploads)) expect(done).to.include({ status: OtaPackage_Status.available });
  });

  it('reports a full disk, and leaves nothing', async () => {
    const tenant = await newTenant();
    await test.database.system(async (tx) => {
      await tx.query(`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'could not extend file "base/1/2": No space left on device' USING ERRCODE = '53100'; END $$`);
      await tx.query(`CREATE TRIGGER full_disk BEFORE INSERT ON artifact_chunks FOR EACH ROW
        WHEN (NEW.chunk_index = 20 AND NEW.tenant_id = '${tenant}') EXECUTE FUNCTION full_disk()`);
    });
    const { uri, ...declared } = publish(randomBytes(2_000_000));
    expect(await outcome(intakeOf().fetch(tenant, uri, declared, { signal }))).to.include({
      code: 'UNAVAILABLE',
      message: 'there is no room left for artifacts',
    });
    expect(await artifactsOf(tenant)).to.deep.equal([]);
    await test.database.system((tx) => tx.query('DROP TRIGGER full_disk ON artifact_chunks'));
  });

  it('removes an artifact with the last package that refers to it', async () => {
    const tenant = await newTenant();
    const packages = packagesOf();
    const artifact = publish(randomBytes(200_000));
    const isAvailable = ({ status }: { status?: string }) => status === 'available';
    for (const name of ['one', 'two']) await applyUntil(packages, tenant, name, artifact, isAvailable);
    await packages.remove(meta(tenant, 'one'), false);
    await sleep(50);
    expect(await artifactsOf(tenant)).to.have.length(1);
    await packages.remove(meta(tenant, 'two'), false);
    await eventually(async () => (await artifactsOf(tenant)).length === 0);
    await applyUntil(packages, tenant, 'two', artifact, isAvailable);
    expect(await artifactsOf(tenant)).to.deep.equal([{ staged: false, size: 200_000, chunks: 4 }]);
  });

  it('fetches again for a deprecated package that was deleted and made again, and it stays deprecated', async () => {
    const tenant = await newTenant();
    const packages = packagesOf();
    const artifact = publish(randomBytes(1000));
    const id = await applyUntil(packages, tenant, 'old', artifact, ({ status }) => status === 'available');
    await test.database.tenant(tenant, (tx) => setPackageAvailability(tx, tenant, id, 'deprecated'));
    await packages.remove(meta(tenant, 'old'), false);
    await eventually(async () => (await artifactsOf(tenant)).length === 0);
    await applyUntil(packages, tenant, 'old', artifact, ({ checksumVerified }) => checksumVerified === true);
    expect(await packages.get(tenant, id)).to.include({ status: OtaPackage_Status.deprecated });
    expect(await artifactsOf(tenant)).to.have.length(1);
  });

  describe('the sweep', () => {
    const age = (tenantId: string, interval: string) =>
      test.database.system((tx) =>
        tx.query(`UPDATE artifacts SET touched_at = now() - $2::interval WHERE tenant_id = $1`, [tenantId, interval]),
      );
    const put = async (tenantId: string, bytes: Buffer) => {
      const sha256 = createHash('sha256').update(bytes).digest();
      await putArtifact(test.database, tenantId, { sha256, sizeBytes: bytes.length }, inPieces(bytes));
      return sha256;
    };

    it('removes what a killed process left, and nothing that is under way', async () => {
      const [dead, living] = [await newTenant(), await newTenant()];
      for (const tenantId of [dead, living]) {
        await test.database.tenant(tenantId, (tx) => stageArtifact(tx, tenantId, 1000, inDatabase));
        await put(tenantId, randomBytes(100));
      }
      await age(dead, '6 minutes');
      const metrics = createMetrics();
      const intake = new ArtifactIntake(test.database, logger, testIntake(), metrics);
      expect(await intake.sweep()).to.be.at.least(2);
      expect(await artifactsOf(dead)).to.deep.equal([]);
      expect(await artifactsOf(living)).to.have.length(2);
      const text = await metrics.metrics();
      expect(text).to.match(/^kellet_artifact_swept_bytes_total [1-9]\d*$/m);
      expect(text).to.match(/^kellet_artifact_bytes\{state="arriving"\} [1-9]\d*$/m);
      expect(text).to.match(/^kellet_artifact_transfers\{kind="fetch",state="running"\} 0$/m);
    });

    it('checks every artifact, page by page', async () => {
      const tenant = await newTenant();
      await test.database.system((tx) =>
        tx.query(
          `INSERT INTO artifacts (tenant_id, sha256, size_bytes, touched_at)
           SELECT $1, sha256(n::text::bytea), 1, now() - interval '1 hour' FROM generate_series(1, 1200) AS n`,
          [tenant],
        ),
      );
      expect(await intakeOf().sweep()).to.equal(1200);
    });

    it('keeps an artifact that a package begins to use at that moment', async () => {
      const tenant = await newTenant();
      const sha256 = await put(tenant, randomBytes(100));
      await age(tenant, '1 hour');
      const intake = intakeOf();
      await test.database.tenant(tenant, async (tx) => {
        expect(await lockArtifact(tx, tenant, sha256)).to.equal(100);
        expect(await intake.sweep()).to.equal(0);
      });
      expect(await intake.sweep()).to.equal(1);
    });

    it('makes a package that begins to use an artifact just then wait, and fetch it again', async () => {
      const tenant = await newTenant();
      const bytes = randomBytes(100);
      const sha256 = await put(tenant, bytes);
      const packages = packagesOf();
      let applied: Promise<unknown> = Promise.resolve();
      await test.database.system(async (tx) => {
        await removeArtifact(tx, tenant, sha256);
        applied = packages.apply(meta(tenant, 'late'), specOf(publish(bytes)));
        await sleep(100);
      });
      expect(await applied).to.have.nested.property('observed.status', 'uploading');
      await applyUntil(packages, tenant, 'late', publish(bytes), ({ status }) => status === 'available');
      expect(await artifactsOf(tenant)).to.have.length(1);
    });

    it('never takes the artifact of a package, whatever is made and deleted around it', async () => {
      const tenant = await newTenant();
      const packages = packagesOf();
      const intake = intakeOf({ unusedSeconds: 0 });
      const artifact = publish(randomBytes(70_000));
      const ends = Date.now() + 3000;
      const churn = async (name: string) => {
        while (Date.now() < ends) {
          await packages.apply(meta(tenant, name), specOf(artifact));
          await sleep(Math.random() * 20);
          if (Math.random() < 0.5) await packages.remove(meta(tenant, name), false);
        }
      };
      const sweeping = async () => {
        while (Date.now() < ends) await intake.sweep();
      };
      const watching = async () => {
        let seen = 0;
        while (Date.now() < ends) {
          const { rows } = await test.database.system((tx) =>
            tx.query<{ available: bigint; lost: bigint }>(
              `SELECT count(*) AS available, count(*) FILTER (WHERE NOT EXISTS (SELECT FROM artifact_chunks AS chunk
                 WHERE chunk.tenant_id = package.tenant_id AND chunk.sha256 = package.sha256)) AS lost
               FROM ota_packages AS package
               WHERE tenant_id = $1 AND deleted_at IS NULL AND status = 'available'`,
              [tenant],
            ),
          );
          expect(Number(rows[0]!.lost)).to.equal(0);
          seen += Number(rows[0]!.available);
        }
        return seen;
      };
      const [seen] = await Promise.all([watching(), sweeping(), churn('a'), churn('b'), churn('c')]);
      expect(seen, 'packages were available in between').to.be.above(10);
    });
  });
});

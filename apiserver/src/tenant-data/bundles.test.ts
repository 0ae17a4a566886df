// The bundles of a tenant: points that were really mined, in segments and cold files, written by the command, compared with those of
// verify/hash, and verified by kellet-verify.
import { execFile, type ExecFileException } from 'node:child_process';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { zstdDecompressSync } from 'node:zlib';
import { create, type JsonObject, toJson } from '@bufbuild/protobuf';
import {
  VerifierService,
  VerifyHashRequestSchema,
  VerifyHashResponseSchema,
} from '@kellet/proto/es/kellet/v1/verifier_pb.ts';
import { fetchHeaders, formatHeadersFile, type ProofBundle, toHex } from '@kellet/verify';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import {
  type Anchoring,
  asAdmin,
  newPoint,
  sealBatch,
  startAnchoring,
  tenantId,
  type TestBatch,
} from '../chain-anchor/testing/anchoring.ts';
import { sleep } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { eventually } from '../platform/testing/eventually.ts';
import type { ColdFiles } from '../telemetry/cold/cold-files.ts';
import { openColdStorage } from '../telemetry/cold/cold-storage.ts';
import { doColdWork } from '../telemetry/cold/cold-work.ts';
import { TestProcesses } from '../testing/test-process.ts';
import { createVerifier } from '../verifier/service.ts';
import { TenantBundles, type TenantBundlesParts } from '../verifier/tenant-bundles.ts';
import { runTenantCommand } from './tenant-command.ts';

const cli = path.join(import.meta.dirname, '../../../verify/src/cli.ts');

describe('the bundles of a tenant', function () {
  this.timeout(120_000);
  let anchoring: Anchoring;
  let folder: string;
  let cold: ColdFiles;
  let turnCold: () => Promise<unknown>;
  const [deviceA, deviceB] = [newId(), newId()];
  /** The batches with values that are retained, in the order in which they were opened. */
  let batches: TestBatch[];
  let theirs: TestBatch;
  let expired: TestBatch;

  const query = (text: string, values: unknown[] = []) =>
    anchoring.platform.database.system((tx) => tx.query<Record<string, unknown>>(text, values));
  const hasStatus = (batchId: string, status: string) => async () =>
    (await query('SELECT status FROM anchor_batches WHERE batch_id = $1', [batchId])).rows[0]?.['status'] === status;
  const mine = async (mined: readonly TestBatch[]) => {
    for (const { batchId } of mined) await eventually(hasStatus(batchId, 'seen'), 10_000);
    await anchoring.devchain.control('mine', { count: 1 });
    for (const { batchId } of mined) await eventually(hasStatus(batchId, 'confirmed'), 10_000);
  };
  /** Moves the points of a batch to an indexed segment of their own. */
  const moveToSegment = async ({ batchId, points }: TestBatch): Promise<bigint> => {
    const id = (await query('SELECT telemetry_open_hot_segment($1) AS id', [newId()])).rows[0]!['id'] as bigint;
    await query(
      `INSERT INTO telemetry_segment_${id} SELECT *, extract(epoch FROM now())::int8 * 1000 FROM telemetry_points
       WHERE batch_id = $1`,
      [batchId],
    );
    await query(
      `DELETE FROM telemetry_points WHERE batch_id = $1 AND tableoid <> 'telemetry_segment_${id}'::regclass`,
      [batchId],
    );
    await query(
      `UPDATE telemetry_segments SET state = 'indexed', counted = true, sealed_at = now(), rows = $2, tenants_recorded = true,
         least_time = (SELECT min(time) FROM telemetry_segment_${id}), greatest_time = (SELECT max(time) FROM telemetry_segment_${id})
       WHERE segment_id = $1`,
      [id, points.length],
    );
    await query('INSERT INTO telemetry_tenant_segments (tenant_id, segment_id, points) VALUES ($1, $2, $3)', [
      ...[points[0]!.tenantId, id, points.length],
    ]);
    return id;
  };

  const runBundles = async (tenant: string, to: string) => {
    const messages: string[] = [];
    const { database, logger, audit } = anchoring.platform;
    const code = await runTenantCommand(['bundles', tenant, '--to', to], {
      ...{ config: coldConfig(), logger, audit, database, write: (line) => messages.push(line) },
      openKubernetes: () => expect.fail('bundles need no cluster'),
    });
    return { code, messages };
  };
  const coldConfig = () => ({
    ...anchoring.platform.config,
    coldUrl: pathToFileURL(path.join(folder, 'cold')).href,
  });
  const linesOf = async (file: string) =>
    zstdDecompressSync(await readFile(file))
      .toString()
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line) as ProofBundle);
  const verify = (args: string[]) =>
    new Promise<{ code: number; stdout: string }>((resolve) => {
      execFile(process.execPath, [cli, 'bundles', ...args], (error: ExecFileException | null, stdout) =>
        resolve({ code: typeof error?.code === 'number' ? error.code : 0, stdout }),
      );
    });
  const hashesOf = (some: readonly TestBatch[]) => some.flatMap(({ leaves }) => leaves.map(toHex));
  const bundlesOf = async (most: TenantBundlesParts['most'], database = anchoring.platform.database) => {
    const found: ProofBundle[] = [];
    const write = (bundle: ProofBundle) => Promise.resolve(void found.push(bundle));
    const counts = await new TenantBundles({ database, cold, write, most }, tenantId).run();
    return { found, counts };
  };

  before(async () => {
    anchoring = await startAnchoring();
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-bundles-'));
    const { database, logger } = anchoring.platform;
    const storage = openColdStorage({ config: coldConfig(), logger, metrics: createMetrics() });
    cold = storage.files;
    turnCold = () =>
      doColdWork({ database, logger, store: storage.store!, files: cold, hotSeconds: 0 }, new AbortController().signal);
    createVerifier(anchoring.platform, cold).register(anchoring.registry);
    const points = (count: number, tenant = tenantId) =>
      Array.from({ length: count }, (_, i) => newPoint(i % 6 < 3 ? deviceA : deviceB, tenant));
    const hot = await sealBatch(database, points(33));
    const turned = await sealBatch(database, points(7));
    const chained = await sealBatch(database, points(9), 'chain');
    theirs = await sealBatch(database, points(3, 'other'));
    const single = await sealBatch(database, points(1), 'per_event');
    const late = await sealBatch(database, points(5));
    expired = await sealBatch(
      database,
      points(4).map((point, i) => ({ ...point, timestampSeconds: 1_500_000_000 + i })),
    );
    batches = [hot, turned, chained, single, late];
    await mine([...batches, theirs, expired]);
    await moveToSegment(turned);
    // Turns that segment cold, the only one that is complete.
    await turnCold();
    // Long after the time of its points, which are of 2025.
    await moveToSegment(late);
    await query('UPDATE tenants SET retention_days = 3000 WHERE tenant_id = $1', [tenantId]);
    // More headers than a bundle gets here.
    await anchoring.devchain.control('mine', { count: 9 });
    const { height } = await anchoring.devchain.state();
    await eventually(async () => (await query('SELECT FROM block_headers WHERE height = $1', [height])).rowCount === 1);
    // Not mined yet: two sealed points, and one of a batch that is still open.
    await sealBatch(database, points(2));
    const open = await sealBatch(database, points(1));
    await query(
      `UPDATE anchor_batches SET status = 'open', leaves = NULL, sealed_at = NULL, merkle_root = NULL WHERE batch_id = $1`,
      [open.batchId],
    );
  });
  after(async () => {
    await anchoring?.stop();
    await rm(folder, { recursive: true });
  });

  it('are those of verify/hash, in order, hot and cold, and all are proven', async () => {
    const file = path.join(folder, 'acme.zst');
    expect(await runBundles(tenantId, file)).to.deep.equal({
      code: 0,
      messages: [
        `55 bundles are written to ${file}; 7 points have no bundle: 3 not mined yet, 4 whose values are no longer retained`,
      ],
    });
    expect((await stat(file)).mode & 0o777).to.equal(0o600);
    const found = await linesOf(file);
    expect(found.map((bundle) => bundle.data_hash)).to.deep.equal(hashesOf(batches));
    for (const bundle of found) {
      const request = create(VerifyHashRequestSchema, { dataHashHex: bundle.data_hash, includeBundle: true });
      const response = await anchoring.registry.unary(VerifierService.method.verifyHash, request, asAdmin());
      const json = toJson(VerifyHashResponseSchema, response, { alwaysEmitImplicit: true, useProtoFieldName: true });
      const whole = (json as JsonObject)['bundle'] as unknown as ProofBundle;
      expect(whole.block_header_chain.length).to.be.greaterThan(6);
      expect(bundle).to.deep.equal({ ...whole, block_header_chain: whole.block_header_chain.slice(0, 6) });
    }
    const { height } = await anchoring.devchain.state();
    const trusted = await fetchHeaders(anchoring.devchain.url, 100, (height as number) - 99);
    const headers = path.join(folder, 'headers.txt');
    await writeFile(headers, formatHeadersFile(trusted));
    const { code, stdout } = await verify([file, '--headers', headers]);
    expect(stdout).to.equal('\nproven\n  bundles     55: 55 proven, 0 mined, 0 refuted, 0 malformed\n');
    expect(code).to.equal(0);
    expect((await verify([file])).code).to.equal(3);

    const damaged = path.join(folder, 'damaged.ndjson');
    const changed = found.map((bundle, line) =>
      line !== 20
        ? bundle
        : {
            ...bundle,
            canonical_hash_inputs: {
              ...bundle.canonical_hash_inputs,
              payload: bundle.canonical_hash_inputs.payload.replace('läuft', 'steht'),
            },
          },
    );
    await writeFile(damaged, changed.map((bundle) => `${JSON.stringify(bundle)}\n`).join(''));
    const refuted = await verify([damaged, '--headers', headers]);
    expect(refuted.stdout).to.match(new RegExp(`^FAIL line 21 ${found[20]!.data_hash} refuted: leaf_hash`));
    expect(refuted.code).to.equal(1);
  });

  it('are of the tenant alone, whether it is served, suspended or deleted, until it is purged', async () => {
    const file = path.join(folder, 'other.zst');
    for (const change of ['suspended_at = now()', 'deleted_at = now(), purge_at = now()']) {
      await query(`UPDATE tenants SET ${change} WHERE tenant_id = 'other'`);
      expect(await runBundles('other', file)).to.deep.equal({
        ...{ code: 0, messages: [`3 bundles are written to ${file}`] },
      });
      expect((await linesOf(file)).map((bundle) => bundle.data_hash)).to.deep.equal(hashesOf([theirs]));
    }
    await query(`UPDATE tenants SET purge_started_at = now() WHERE tenant_id = 'other'`);
    const absent = path.join(folder, 'absent.zst');
    expect(await runBundles('other', absent)).to.deep.equal({
      ...{ code: 1, messages: ['the data of the tenant other is being purged or gone'] },
    });
    expect(await runBundles('nobody', absent)).to.deep.equal({
      ...{ code: 1, messages: ['there is no tenant nobody'] },
    });
    // What was refused leaves no file behind.
    for (const name of [absent, `${absent}.partial`]) {
      expect(await stat(name).catch((error: NodeJS.ErrnoException) => error.code)).to.equal('ENOENT');
    }
    await insertTenant(anchoring.platform.database, 'empty');
    expect((await runBundles('empty', absent)).messages).to.deep.equal([`0 bundles are written to ${absent}`]);
  });

  it('are the same whatever is read at once', async () => {
    const { found: whole, counts } = await bundlesOf(undefined);
    expect(counts).to.deep.equal({ written: 55, pending: 3, expired: 4, damaged: 0 });
    for (const most of [{ leaves: 1 }, { leaves: 4 }, { leaves: 34 }, { bytes: 1 }, { leaves: 40, bytes: 2000 }]) {
      const small = await bundlesOf(most);
      expect(small.counts, JSON.stringify(most)).to.deep.equal(counts);
      expect(small.found).to.deep.equal(whole);
    }
  });

  it('are read of few more points than there is memory for, so that large values are not read again and again', async () => {
    const { database } = anchoring.platform;
    let rows = 0;
    const counting = Object.assign(Object.create(database) as Database, {
      maintenance: <T>(work: (tx: Transaction) => Promise<T>): Promise<T> =>
        database.maintenance((tx) =>
          work(
            Object.assign(Object.create(tx) as Transaction, {
              query: async (text: string, values?: unknown[]) => {
                const result = await tx.query(text, values);
                if (text.startsWith('FETCH')) rows += result.rows.length;
                return result;
              },
            }),
          ),
        ),
    });
    const { counts } = await bundlesOf({ bytes: 1 }, counting);
    expect(counts.written).to.equal(55);
    expect(rows, 'rows that were read').to.be.within(48, 200);
  });

  it('leave out a point whose values were changed, and count it', async () => {
    const [hot] = batches;
    const change = (from: string, to: string) =>
      query(`UPDATE telemetry_points SET payload = replace(payload, $3, $4) WHERE batch_id = $1 AND leaf_index = $2`, [
        ...[hot!.batchId, 3, from, to],
      ]);
    await change('läuft', 'steht');
    const { found, counts } = await bundlesOf(undefined);
    await change('steht', 'läuft');
    expect(counts).to.include({ written: 54, damaged: 1 });
    expect(found.map((bundle) => bundle.data_hash)).to.deep.equal(
      hashesOf(batches).filter((hash) => hash !== toHex(hot!.leaves[3]!)),
    );
  });

  it('of a batch wait until the chain is no longer reorganised, or count as not mined if it has lost its block', async () => {
    const [hot, , chained] = batches;
    // It would mend both at once.
    await anchoring.halt();
    const setHeaders = (to: 'upper' | 'lower') => query(`UPDATE block_headers SET block_hash = ${to}(block_hash)`);
    const setStatus = (status: string) =>
      query('UPDATE anchor_batches SET status = $2 WHERE batch_id = $1', [chained!.batchId, status]);
    await setHeaders('upper');
    const waiting = bundlesOf(undefined);
    await sleep(500);
    await setStatus('seen');
    await setHeaders('lower');
    const { found, counts } = await waiting;
    expect(counts).to.deep.equal({ written: 46, pending: 12, expired: 4, damaged: 0 });
    expect(found.slice(0, 33).map((bundle) => bundle.data_hash)).to.deep.equal(hashesOf([hot!]));
    await setStatus('confirmed');
    await setHeaders('upper');
    const failed = await bundlesOf({ reorganisation: 0 }).catch((error: Error) => error.message);
    await setHeaders('lower');
    expect(failed).to.equal('the chain is being reorganised: try again');
  });

  it('state no depth below the headers that they show, although blocks arrive while these are read', async () => {
    // The background, which would fetch them, is halted.
    const { rows } = await query(
      `SELECT jsonb_agg(to_jsonb(h)) AS above FROM block_headers h
       WHERE height > (SELECT max(block_height) FROM anchor_batches WHERE tenant_id = $1)`,
      [tenantId],
    );
    const above = JSON.stringify(rows[0]!['above']);
    const blocks = `SELECT * FROM jsonb_populate_recordset(NULL::block_headers, $1::jsonb)`;
    await query(`DELETE FROM block_headers WHERE height IN (SELECT height FROM (${blocks}))`, [above]);
    const { database } = anchoring.platform;
    let arrived: Promise<unknown> | undefined;
    const arriving = Object.assign(Object.create(database) as Database, {
      read: <T>(tenant: string, work: (tx: Transaction) => Promise<T>): Promise<T> =>
        database.tenant(tenant, (tx) => {
          let last: Promise<unknown> = Promise.resolve();
          const inTurn = async (text: string, values?: unknown[]) => {
            const result = await tx.query(text, values);
            if (text.includes('FROM block_headers'))
              await (arrived ??= query(`INSERT INTO block_headers ${blocks}`, [above]));
            return result;
          };
          return work(
            Object.assign(Object.create(tx) as Transaction, {
              query: (text: string, values?: unknown[]) => (last = last.then(() => inTurn(text, values))),
            }),
          );
        }),
    });
    const { found } = await bundlesOf({ leaves: 1 }, arriving);
    expect(arrived, 'whether blocks arrived').not.to.equal(undefined);
    expect(found).to.have.length(55);
    for (const bundle of found) expect(bundle.confirmation_depth).to.be.at.least(bundle.block_header_chain.length);
  });

  it('are written by the program, which records it in the audit log', async () => {
    const processes = await TestProcesses.create(anchoring.gateway.testDatabase.url);
    const file = path.join(folder, 'program.zst');
    try {
      await processes.run(['tenant', 'bundles', tenantId, '--to', file], { KELLET_COLD_URL: coldConfig().coldUrl });
    } finally {
      await processes.remove();
    }
    expect(await linesOf(file)).to.have.length(55);
    const { rows } = await query('SELECT FROM audit_pending WHERE resource_id = $1', [
      `tenant bundles ${tenantId} --to ${file}`,
    ]);
    expect(rows).to.have.length(1);
  });

  it('are those of points, too, that turn cold while their segments are read', async () => {
    const { database } = anchoring.platform;
    let turning: Promise<unknown> | undefined;
    const turnsFirst = Object.assign(Object.create(database) as Database, {
      maintenance: async <T>(work: (tx: Transaction) => Promise<T>): Promise<T> => {
        await (turning ??= turnCold());
        return database.maintenance(work);
      },
    });
    const { counts } = await bundlesOf({}, turnsFirst);
    const { rows } = await query(`SELECT FROM telemetry_segments WHERE state = 'indexed'`);
    expect(rows, 'segments that are still hot').to.deep.equal([]);
    expect(counts).to.deep.equal({ written: 55, pending: 3, expired: 4, damaged: 0 });
  });

  it('are not written without a cold file that is missing', async () => {
    await rm(path.join(folder, 'cold'), { recursive: true });
    const file = path.join(folder, 'missing.zst');
    const { code, messages } = await runBundles(tenantId, file);
    expect(code).to.equal(1);
    expect(messages.join('\n')).to.match(/^the cold file [0-9a-f-]{36} cannot be read: /);
    expect(await stat(file).catch((error: NodeJS.ErrnoException) => error.code)).to.equal('ENOENT');
  });
});

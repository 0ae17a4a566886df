// Proofs of batches that were really mined, read through the service and by SQL, and checked by the independent
// library.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { create, type JsonObject, toJson } from '@bufbuild/protobuf';
import { AnchoringPolicy_Mode } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import {
  GetBatchProofRequestSchema,
  GetBundleSchemaRequestSchema,
  GetRolloutProofRequestSchema,
  ListProofsRequestSchema,
  type RolloutProof,
  RolloutProofSchema,
  VerifierService,
  VerifyHashRequestSchema,
  type VerifyHashResponse,
  VerifyHashResponseSchema,
  VerifyRawRequestSchema,
} from '@kellet/proto/es/kellet/v1/verifier_pb.ts';
import {
  type AnchorMode,
  canonicalPayload,
  fetchHeaders,
  findCommitment,
  fromHex,
  leafHash,
  type LeafInputs,
  parseBeef,
  parsePayload,
  pinsOfHeaders,
  PROOF_BUNDLE_SCHEMA,
  RolloutVerifier,
  toHex,
  verifyBundle,
  walkMerklePath,
} from '@kellet/verify';
import { expect } from 'chai';
import {
  type Anchoring,
  asAdmin,
  asDevice,
  newPoint,
  sealBatch,
  startAnchoring,
  tenantId,
  type TestBatch,
} from '../chain-anchor/testing/anchoring.ts';
import { s3SettingsOf } from '../config/config.ts';
import { sleep } from '../platform/clock.ts';
import type { Transaction } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';
import { openStore } from '../platform/object-store/open-store.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { type CallContext, ServiceRegistry } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { outcomeOf } from '../platform/testing/refusals.ts';
import { ColdFiles } from '../telemetry/cold/cold-files.ts';
import { doColdWork } from '../telemetry/cold/cold-work.ts';
import { createVerifier } from './service.ts';

const method = VerifierService.method;

/** Returns how many statements like this wait for a lock. */
async function readersWaiting(tx: Transaction, statement: string): Promise<number> {
  // A transaction sees the activity of its first look otherwise.
  await tx.query('SELECT pg_stat_clear_snapshot()');
  const { rows } = await tx.query<{ number: number }>(
    `SELECT count(*)::int4 AS number FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1`,
    [statement],
  );
  return rows[0]!.number;
}

describe('verifier', function () {
  this.timeout(60_000);
  let anchoring: Anchoring;
  const deviceA = newId();
  const deviceB = newId();
  /** Modes and sizes that cover every relevant tree shape. */
  const shapes: [AnchorMode, number][] = [
    ['merkle', 1],
    ['merkle', 2],
    ['merkle', 7],
    ['merkle', 33],
    ['per_event', 1],
    ['chain', 5],
    ['chain', 9],
  ];
  const batches: TestBatch[] = [];

  const verifyHash = (dataHashHex: string, includeBundle = false, context: CallContext = asAdmin()) =>
    anchoring.registry.unary(
      method.verifyHash,
      create(VerifyHashRequestSchema, { dataHashHex, includeBundle }),
      context,
    );
  const isConfirmed = (batchId: string) => async () => {
    const { rows } = await anchoring.platform.database.system((tx) =>
      tx.query<{ status: string }>('SELECT status FROM anchor_batches WHERE batch_id = $1', [batchId]),
    );
    return rows[0]?.status === 'confirmed';
  };
  const hasStatus = (batchId: string, status: string) => async () => {
    const { rows } = await anchoring.platform.database.system((tx) =>
      tx.query<{ status: string }>('SELECT status FROM anchor_batches WHERE batch_id = $1', [batchId]),
    );
    return rows[0]?.status === status;
  };
  const raw = (point: LeafInputs) => {
    const { numericValues, stringValues } = parsePayload(point.payload);
    return {
      deviceId: point.deviceId,
      timestamp: new Date(point.timestampSeconds * 1000 + 250).toISOString(),
      numericValues: Object.fromEntries(numericValues),
      stringValues: Object.fromEntries(stringValues),
    };
  };
  const verifyRaw = (request: ReturnType<typeof raw>, context: CallContext = asAdmin()) =>
    anchoring.registry.unary(method.verifyRaw, create(VerifyRawRequestSchema, request), context);
  const json = (response: VerifyHashResponse) =>
    toJson(VerifyHashResponseSchema, response, { alwaysEmitImplicit: true, useProtoFieldName: true }) as JsonObject;
  const trustedPins = async () => {
    const { height } = await anchoring.devchain.state();
    return pinsOfHeaders(await fetchHeaders(anchoring.devchain.url, 100, (height as number) - 99), 'headers');
  };

  before(async () => {
    anchoring = await startAnchoring();
    createVerifier(anchoring.platform).register(anchoring.registry);
    for (const [mode, count] of shapes) {
      // Two devices alternate in runs of three, so that chain mode has several segments with several leaves.
      const points = Array.from({ length: count }, (_, i) => newPoint(i % 6 < 3 ? deviceA : deviceB));
      batches.push(await sealBatch(anchoring.platform.database, points, mode));
    }
    for (const batch of batches) await eventually(hasStatus(batch.batchId, 'seen'), 10_000);
  });
  after(() => anchoring?.stop());

  it('has no proof for a pending or unknown hash', async () => {
    const pending = await verifyHash(toHex(batches[0]!.leaves[0]!)).catch((error: unknown) => error as Error);
    const never = await verifyHash('ab'.repeat(32)).catch((error: unknown) => error as Error);
    expect(pending).to.have.property('code', 'NOT_FOUND');
    expect((pending as Error).message)
      .to.equal('no blockchain proof was found for this data hash; it may be pending or nonexistent')
      .and.to.equal((never as Error).message);
    expect(await outcomeOf(verifyRaw(raw(batches[0]!.points[0]!)))).to.equal('NOT_FOUND');
    await anchoring.devchain.control('mine', { count: 1 });
    for (const batch of batches) await eventually(isConfirmed(batch.batchId), 10_000);
  });

  it('rejects an invalid hash', async () => {
    for (const text of ['', 'ab', 'xy'.repeat(32), 'ab'.repeat(33)]) {
      expect(await outcomeOf(verifyHash(text)), text).to.equal('INVALID_ARGUMENT');
    }
  });

  for (const [place, [mode, count]] of shapes.entries()) {
    it(`proves every leaf of ${mode} batches of ${count}, offline too`, async () => {
      const batch = batches[place]!;
      await anchoring.devchain.control('mine', { count: 1 });
      const { height } = await anchoring.devchain.state();
      await eventually(async () => {
        const { rows } = await anchoring.platform.database.system((tx) =>
          tx.query('SELECT FROM block_headers WHERE height = $1', [height]),
        );
        return rows.length === 1;
      });
      const pins = await trustedPins();
      for (const [index, leaf] of batch.leaves.entries()) {
        const response = await verifyHash(toHex(leaf), true);
        const path = response.merklePath.map((step) => ({ hash: fromHex(step.hash), isRight: step.isRight }));
        expect(toHex(walkMerklePath(leaf, path))).to.equal(response.merkleRoot);
        const [only] = parseBeef(fromHex(response.beefHex)).transactions;
        expect(toHex(findCommitment(only!.transaction).merkleRoot)).to.equal(response.merkleRoot);
        expect(response).to.include({ batchId: batch.batchId, tenantId, deviceId: batch.points[index]!.deviceId });
        expect(response.anchorMode).to.equal(AnchoringPolicy_Mode[mode]);
        if (mode === 'per_event') expect(response.merklePath).to.deep.equal([]);

        const document = json(response);
        const verdict = verifyBundle(document, { pins });
        expect(verdict.verdict, verdict.reason).to.equal('proven');
        expect(verdict.statement).to.include({
          proven_depth: (height as number) - response.blockHeight + 1,
          batch_id: batch.batchId,
        });
        const bundle = document['bundle'] as JsonObject;
        expect(
          verifyBundle({ ...bundle, leaf_index: (bundle['leaf_index'] as number) + 1 }, { pins }).verdict,
        ).to.equal('refuted');
      }
    });
  }

  it('recomputes the hash of raw values', async () => {
    for (const batch of batches) {
      const point = batch.points.at(-1)!;
      const response = await verifyRaw(raw(point));
      expect(response.verified).to.equal(true);
      expect(response.dataHash).to.equal(toHex(leafHash(point)));
      expect(response.batchId).to.equal(batch.batchId);
    }
    const right = raw(batches[2]!.points[0]!);
    const wrong: Record<string, ReturnType<typeof raw>> = {
      value: { ...right, numericValues: { temperature: -1 } },
      'missing value': { ...right, stringValues: {} },
      second: { ...right, timestamp: '2020-01-01T00:00:00Z' },
      device: { ...right, deviceId: deviceB },
      'unknown device': { ...right, deviceId: newId() },
      'no device': { ...right, deviceId: 'unknown' },
    };
    for (const [what, request] of Object.entries(wrong)) {
      expect(await outcomeOf(verifyRaw(request)), what).to.equal('NOT_FOUND');
    }
    for (const timestamp of ['', 'yesterday', '1969-12-31T23:59:59Z']) {
      expect(await outcomeOf(verifyRaw({ ...right, timestamp })), timestamp).to.equal('INVALID_ARGUMENT');
    }
    const illFormed = { ...right, stringValues: { state: '\ud800' } };
    expect(await outcomeOf(verifyRaw(illFormed))).to.equal('INVALID_ARGUMENT');
    expect(await outcomeOf(verifyRaw(right, asAdmin('other')))).to.equal('NOT_FOUND');
  });

  it('lets a device key see only the hashes of its own device', async () => {
    const point = batches[2]!.points[0]!;
    const hash = toHex(leafHash(point));
    expect((await verifyHash(hash, true, asDevice(deviceA))).dataHash).to.equal(hash);
    expect((await verifyRaw(raw(point), asDevice(deviceA))).verified).to.equal(true);
    expect(await outcomeOf(verifyHash(hash, false, asDevice(deviceB)))).to.equal('PERMISSION_DENIED');
    expect(await outcomeOf(verifyRaw(raw(point), asDevice(deviceB)))).to.equal('PERMISSION_DENIED');
  });

  it('isolates tenants from one another', async () => {
    const [batch] = batches;
    expect(await outcomeOf(verifyHash(toHex(batch!.leaves[0]!), false, asAdmin('other')))).to.equal('NOT_FOUND');
    const theirs = await anchoring.registry.unary(method.listProofs, create(ListProofsRequestSchema), asAdmin('other'));
    expect(theirs).to.include({ total: 0 }).and.to.have.property('proofs').that.is.empty;
    const request = create(GetBatchProofRequestSchema, { batchId: batch!.batchId });
    expect(await outcomeOf(anchoring.registry.unary(method.getBatchProof, request, asAdmin('other')))).to.equal(
      'NOT_FOUND',
    );
  });

  it('returns a whole batch, with its leaves page by page', async () => {
    const batch = batches[3]!;
    const page = (pageToken: string, pageSize = 20) =>
      anchoring.registry.unary(
        method.getBatchProof,
        create(GetBatchProofRequestSchema, { batchId: batch.batchId, pageSize, pageToken }),
        asAdmin(),
      );
    const first = await page('');
    const second = await page(first.nextPageToken);
    expect([...first.leaves, ...second.leaves]).to.deep.equal(batch.leaves.map(toHex));
    expect(second.nextPageToken).to.equal('');
    expect(first).to.include({ count: 33, txid: second.txid });
    expect(await outcomeOf(page('nonsense'))).to.equal('INVALID_ARGUMENT');
    expect(await outcomeOf(page('', -1))).to.equal('INVALID_ARGUMENT');

    const chain = await anchoring.registry.unary(
      method.getBatchProof,
      create(GetBatchProofRequestSchema, { batchId: batches[6]!.batchId }),
      asAdmin(),
    );
    expect(chain.count).to.equal(3);
    expect(chain.segments.map(({ firstLeaf, leafCount }) => [firstLeaf, leafCount])).to.deep.equal([
      [0, 3],
      [3, 3],
      [6, 3],
    ]);
  });

  it('lists proofs by limit and offset, optionally of one device', async () => {
    const list = (request: Parameters<typeof create<typeof ListProofsRequestSchema>>[1]) =>
      anchoring.registry.unary(method.listProofs, create(ListProofsRequestSchema, request), asAdmin());
    const all = shapes.reduce((sum, [, count]) => sum + count, 0);
    const listed: string[] = [];
    for (let offset = 0; offset < all; offset += 7) {
      const { proofs, total } = await list({ limit: 7, offset });
      expect(total).to.equal(all);
      expect(proofs).to.have.length(Math.min(7, all - offset));
      for (const proof of proofs) {
        const { deviceId } = batches
          .flatMap(({ points }) => points)
          .find((point) => toHex(leafHash(point)) === proof.dataHash)!;
        expect(proof.deviceId).to.equal(deviceId);
        listed.push(proof.dataHash);
      }
    }
    const expected = batches.flatMap(({ leaves }) => leaves.map(toHex));
    expect([...listed].sort()).to.deep.equal([...expected].sort());
    expect((await list({ limit: 7, offset: all })).proofs).to.deep.equal([]);

    const ofB = batches.flatMap(({ points }) => points.filter(({ deviceId }) => deviceId === deviceB));
    const { proofs, total } = await list({ limit: 500, deviceId: deviceB });
    expect(total).to.equal(ofB.length);
    expect(proofs.map(({ dataHash }) => dataHash).sort()).to.deep.equal(
      ofB.map((point) => toHex(leafHash(point))).sort(),
    );
    expect(await outcomeOf(list({ limit: -1 }))).to.equal('INVALID_ARGUMENT');
    expect(await outcomeOf(list({ offset: -1 }))).to.equal('INVALID_ARGUMENT');
    expect(await outcomeOf(list({ deviceId: newId() }))).to.equal('NOT_FOUND');
  });

  it('counts proofs as they come and go, and those of before it counted them', async () => {
    const { database } = anchoring.platform;
    const list = (request: Parameters<typeof create<typeof ListProofsRequestSchema>>[1]) =>
      anchoring.registry.unary(method.listProofs, create(ListProofsRequestSchema, request), asAdmin());
    const total = async () => (await list({ limit: 1 })).total;
    const all = shapes.reduce((sum, [, count]) => sum + count, 0);
    // What an installation of an earlier version has.
    await database.system((tx) => tx.query('DELETE FROM proven_leaves'));
    const [batch] = batches;
    const setStatus = (status: string) =>
      database.system((tx) =>
        tx.query('UPDATE anchor_batches SET status = $2 WHERE batch_id = $1', [batch!.batchId, status]),
      );
    await setStatus('seen');
    expect(await total()).to.equal(all - batch!.leaves.length);
    await setStatus('confirmed');
    expect(await total()).to.equal(all);
    await setStatus('seen');
    const { proofs } = await list({ limit: 500 });
    const withdrawn = new Set(batch!.leaves.map(toHex));
    expect(proofs).to.have.length(all - batch!.leaves.length);
    expect(proofs.filter(({ dataHash }) => withdrawn.has(dataHash))).to.deep.equal([]);
    const ofDevice = await list({ limit: 500, deviceId: deviceA });
    expect(ofDevice.proofs.filter(({ dataHash }) => withdrawn.has(dataHash))).to.deep.equal([]);
    expect(ofDevice.total).to.equal(ofDevice.proofs.length);
    await setStatus('confirmed');
    expect(await total()).to.equal(all);
  });

  it('shows the same proofs to SQL readers, to each tenant only its own', async () => {
    interface Row {
      data_hash: string;
      batch_id: string;
      merkle_path: { hash: string; is_right: boolean }[];
      txid: string;
      beef_hex: string;
      block_height: number;
      block_hash: string;
      tenant_id: string;
      device_id: string;
    }
    const read = (tenant: string) =>
      anchoring.platform.database.tenant(tenant, (tx) => tx.query<Row>('SELECT * FROM anchor_proofs'));
    const { rows } = await read(tenantId);
    expect(rows).to.have.length(shapes.reduce((sum, [, count]) => sum + count, 0));
    for (const row of rows) {
      const response = json(await verifyHash(row.data_hash));
      for (const [field, value] of Object.entries(row)) {
        if (field !== 'confirmed_at') expect(response[field], field).to.deep.equal(value);
      }
    }
    expect((await read('other')).rows).to.deep.equal([]);
  });

  it('prefers the highest block when a hash was anchored twice', async () => {
    const point = newPoint(deviceA);
    const ids: string[] = [];
    for (let i = 0; i < 2; i += 1) {
      const batch = await sealBatch(anchoring.platform.database, [point, newPoint(deviceA)]);
      ids.push(batch.batchId);
      await eventually(hasStatus(batch.batchId, 'seen'), 10_000);
      await anchoring.devchain.control('mine', { count: 1 });
      await eventually(isConfirmed(batch.batchId), 10_000);
    }
    expect((await verifyHash(toHex(leafHash(point)))).batchId).to.equal(ids[1]);
  });

  describe('the proof of a rollout', () => {
    const rolloutId = newId();
    const results = new Map<string, LeafInputs>();
    const fetchPage = (pageToken: string, pageSize = 4, context: CallContext = asAdmin()) =>
      anchoring.registry.unary(
        method.getRolloutProof,
        create(GetRolloutProofRequestSchema, { rolloutId, pageSize, pageToken }),
        context,
      );
    const pages = async (pageSize?: number) => {
      const found: RolloutProof[] = [];
      do found.push(await fetchPage(found.at(-1)?.nextPageToken ?? '', pageSize));
      while (found.at(-1)!.nextPageToken !== '');
      return found;
    };
    /** Verifies the pages as kellet-verify does. */
    const verdictOf = async (found: readonly RolloutProof[]) => {
      const verifier = new RolloutVerifier();
      const shown = found.flatMap((page) =>
        verifier.add(
          JSON.stringify(toJson(RolloutProofSchema, page, { alwaysEmitImplicit: true, useProtoFieldName: true })),
        ),
      );
      return { ...verifier.finish(await trustedPins()), shown };
    };
    /** Adds results as reports and telemetry leave them: each the only point of the service in its batch. */
    const addBatchOfResults = async (mode: AnchorMode, count: number): Promise<TestBatch> => {
      const points = Array.from({ length: count }, () => {
        const payload = canonicalPayload(
          {},
          {
            'kellet.ota.result_id': newId(),
            'kellet.ota.rollout_id': rolloutId,
            'kellet.ota.result': 'successful',
            'kellet.ota.reported_version': '2.0.0',
          },
        );
        return { ...newPoint(deviceA), payload };
      });
      const batch = await sealBatch(anchoring.platform.database, [...points, newPoint(deviceB)], mode);
      await addResults(points, batch.batchId);
      return batch;
    };
    const addResults = (points: readonly LeafInputs[], batchId: string | null) =>
      anchoring.platform.database.system(async (tx) => {
        for (const [index, point] of points.entries()) {
          const resultId = parsePayload(point.payload).stringValues.get('kellet.ota.result_id')!;
          results.set(resultId, point);
          await tx.query(
            `INSERT INTO ota_results
               (tenant_id, result_id, rollout_id, device_id, time, payload, data_hash, batch_id, leaf_index)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
            [
              ...[tenantId, resultId, rolloutId, point.deviceId, BigInt(point.timestampSeconds) * 1_000_000_000n],
              ...[point.payload, Buffer.from(leafHash(point)), batchId, batchId === null ? null : index],
            ],
          );
        }
      });

    before(async () => {
      await anchoring.platform.database.system((tx) =>
        tx.query(
          `INSERT INTO ota_rollouts (tenant_id, rollout_id, name, namespace, display_name, package_id, profile_id, spec, phase)
           VALUES ($1, $2, 'r', 'n', 'r', $3, $4, '{}', 'active')`,
          [tenantId, rolloutId, newId(), newId()],
        ),
      );
    });

    it('has no results before a device has reported one', async () => {
      expect(await verdictOf(await pages())).to.include({ verdict: 'incomplete' });
    });

    it('proves results in every mode, page by page, from blocks far apart', async () => {
      for (const [mode, count] of [
        ['merkle', 5],
        ['chain', 3],
        ['per_event', 0],
        ['merkle', 6],
      ] as [AnchorMode, number][]) {
        const batch = count > 0 ? await addBatchOfResults(mode, count) : undefined;
        if (batch) await eventually(hasStatus(batch.batchId, 'seen'), 10_000);
        await anchoring.devchain.control('mine', { count: 20 });
        if (batch) await eventually(isConfirmed(batch.batchId), 10_000);
      }
      for (const pageSize of [1, 4, 500]) {
        const { verdict, reason, shown } = await verdictOf(await pages(pageSize));
        expect({ verdict, reason }, `pages of ${pageSize}`).to.deep.equal({ verdict: 'proven', reason: undefined });
        expect(shown).to.have.length(14);
      }
      const sent = (await pages(1)).flatMap((page) => page.blockHeaderChain.map(({ height }) => height));
      expect(new Set(sent).size).to.equal(sent.length);
    });

    it('lists results that are not anchored or confirmed yet as pending', async () => {
      const waiting = { ...newPoint(deviceA) };
      const payload = canonicalPayload({}, { 'kellet.ota.result_id': newId(), 'kellet.ota.rollout_id': rolloutId });
      await addResults([{ ...waiting, payload }], null);
      const batch = await addBatchOfResults('merkle', 1);
      const { verdict, counts } = await verdictOf(await pages());
      expect({ verdict, pending: counts.pending }).to.deep.equal({ verdict: 'incomplete', pending: 2 });
      await eventually(hasStatus(batch.batchId, 'seen'), 10_000);
      await anchoring.devchain.control('mine', { count: 1 });
      await eventually(isConfirmed(batch.batchId), 10_000);
      expect((await verdictOf(await pages())).counts.pending).to.equal(1);
    });

    it('does not continue across a reorganisation', async () => {
      const first = await fetchPage('', 4);
      await anchoring.platform.database.system((tx) =>
        tx.query(`UPDATE block_headers SET block_hash = upper(block_hash) WHERE height = $1`, [
          first.blockHeaderChain.at(-1)!.height,
        ]),
      );
      expect(await outcomeOf(fetchPage(first.nextPageToken, 4))).to.equal('UNAVAILABLE');
      await anchoring.platform.database.system((tx) =>
        tx.query('UPDATE block_headers SET block_hash = lower(block_hash)'),
      );
      await fetchPage(first.nextPageToken, 4);
    });

    it('is of the tenant alone', async () => {
      expect(await outcomeOf(fetchPage('', 4, asAdmin('other')))).to.equal('NOT_FOUND');
      const request = create(GetRolloutProofRequestSchema, { rolloutId: newId() });
      expect(await outcomeOf(anchoring.registry.unary(method.getRolloutProof, request, asAdmin()))).to.equal(
        'NOT_FOUND',
      );
      expect(await outcomeOf(fetchPage('nonsense'))).to.equal('INVALID_ARGUMENT');
      expect(await outcomeOf(fetchPage('', -1))).to.equal('INVALID_ARGUMENT');
    });
  });

  it('publishes the bundle schema', async () => {
    const schema = await anchoring.registry.unary(
      method.getBundleSchema,
      create(GetBundleSchemaRequestSchema),
      asAdmin(),
    );
    expect(toJson(method.getBundleSchema.output, schema)).to.deep.equal(PROOF_BUNDLE_SCHEMA);
  });

  it('builds the same bundles of points that turned cold, and none past their retention', async () => {
    const { platform } = anchoring;
    const { database, logger } = platform;
    const own = await sealBatch(
      database,
      Array.from({ length: 5 }, () => newPoint(deviceA)),
    );
    const other = await sealBatch(
      database,
      Array.from({ length: 5 }, () => newPoint(deviceA)),
    );
    for (const { batchId } of [own, other]) await eventually(hasStatus(batchId, 'seen'), 10_000);
    await anchoring.devchain.control('mine', { count: 1 });
    for (const { batchId } of [own, other]) await eventually(isConfirmed(batchId), 10_000);
    const hot = await Promise.all(own.leaves.map((leaf) => verifyHash(toHex(leaf), true)));
    // As if the telemetry writer had written them to a segment of their own.
    await database.system(async (tx) => {
      const { rows } = await tx.query<{ id: bigint }>('SELECT telemetry_open_hot_segment($1) AS id', [newId()]);
      const { id } = rows[0]!;
      await tx.query(
        `INSERT INTO telemetry_segment_${id} SELECT *, extract(epoch FROM now())::int8 * 1000 FROM telemetry_points
         WHERE batch_id = $1`,
        [own.batchId],
      );
      await tx.query(
        `DELETE FROM telemetry_points WHERE batch_id = $1 AND tableoid <> 'telemetry_segment_${id}'::regclass`,
        [own.batchId],
      );
      await tx.query(
        `UPDATE telemetry_segments SET state = 'indexed', counted = true, sealed_at = now(), rows = 5 WHERE segment_id = $1`,
        [id],
      );
    });
    const folder = await mkdtemp(join(tmpdir(), 'kellet-verifier-'));
    const store = openStore(pathToFileURL(folder).href, s3SettingsOf(platform.config));
    const files = new ColdFiles(store, { logger, metrics: createMetrics() });
    await doColdWork({ database, logger, store, files, hotSeconds: 0 }, new AbortController().signal);
    const registry = new ServiceRegistry();
    createVerifier(platform, files).register(registry);
    const bundle = (leaf: Uint8Array, includeBundle = true, context = asAdmin()) =>
      registry.unary(
        method.verifyHash,
        create(VerifyHashRequestSchema, { dataHashHex: toHex(leaf), includeBundle }),
        context,
      );
    const pins = await trustedPins();
    for (const [index, leaf] of own.leaves.entries()) {
      const cold = await bundle(leaf);
      expect(json(cold)['bundle']).to.deep.equal(json(hot[index]!)['bundle']);
      expect(verifyBundle(json(cold), { pins }).verdict).to.equal('proven');
    }
    // The points are of 2025.
    const retain = (days: number) =>
      database.system((tx) => tx.query('UPDATE tenants SET retention_days = $1', [days]));
    await retain(30);
    for (const leaf of [own.leaves[0]!, other.leaves[0]!]) {
      expect(await outcomeOf(bundle(leaf))).to.equal('FAILED_PRECONDITION');
      expect(await bundle(leaf, false)).to.include({ dataHash: toHex(leaf) });
    }
    await retain(0);
    expect(await outcomeOf(bundle(own.leaves[0]!))).to.equal('OK');
    await rm(folder, { recursive: true });
    expect(await outcomeOf(bundle(own.leaves[1]!))).to.equal('INTERNAL');
    expect(await bundle(own.leaves[1]!, false)).to.include({ dataHash: toHex(own.leaves[1]!) });
    expect(await outcomeOf(bundle(other.leaves[1]!))).to.equal('OK');
  });

  it('makes few single proofs of a tenant at once', async () => {
    const { database } = anchoring.platform;
    const prove = () => {
      const request = create(GetBatchProofRequestSchema, { batchId: batches[2]!.batchId });
      return outcomeOf(anchoring.registry.unary(method.getBatchProof, request, asAdmin()));
    };
    let proofs: Promise<string[]> | undefined;
    await database.system(async (tx) => {
      await tx.query('LOCK TABLE anchor_batches IN ACCESS EXCLUSIVE MODE');
      proofs = Promise.all(Array.from({ length: 8 }, prove));
      await eventually(async () => (await readersWaiting(tx, '%batch_id = $2 AND status%')) >= 4);
      await sleep(200);
      expect(await readersWaiting(tx, '%batch_id = $2 AND status%')).to.equal(4);
    });
    expect(await proofs).to.deep.equal(Array.from({ length: 8 }, () => 'OK'));
  });

  it('makes the pages of a tenant one after the other, beside those of others', async () => {
    const { database } = anchoring.platform;
    const list = (tenant: string, deviceId: string) => {
      const request = create(ListProofsRequestSchema, { limit: 500, deviceId });
      return outcomeOf(anchoring.registry.unary(method.listProofs, request, asAdmin(tenant)));
    };
    let pages: Promise<string[]> | undefined;
    await database.system(async (tx) => {
      // Reads of leaves wait for this.
      await tx.query('LOCK TABLE anchor_batches IN ACCESS EXCLUSIVE MODE');
      pages = Promise.all([...Array.from({ length: 4 }, () => list(tenantId, deviceA)), list('other', newId())]);
      await eventually(async () => (await readersWaiting(tx, 'WITH proven%')) >= 2);
      await sleep(200);
      expect(await readersWaiting(tx, 'WITH proven%')).to.equal(2);
    });
    expect(await pages).to.deep.equal(['OK', 'OK', 'OK', 'OK', 'NOT_FOUND']);
  });
});

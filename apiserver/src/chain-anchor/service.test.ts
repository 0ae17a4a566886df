// The regular path of a batch on a real database, broker, gateway and chain: sealed, submitted, seen, mined, confirmed.
import { create } from '@bufbuild/protobuf';
import {
  AnchorBatch_Status,
  GetBatchRequestSchema,
  ListBatchesRequestSchema,
} from '@kellet/proto/es/kellet/v1/anchor_pb.ts';
import { AnchoringPolicy_Mode } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import { findCommitment, merkleRoot, parseTransaction, toHex } from '@kellet/verify';
import { expect } from 'chai';
import { connect } from 'nats';
import { KelletError } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { eventually } from '../platform/testing/eventually.ts';
import {
  type Anchoring,
  anchorMethods,
  asAdmin,
  newPoint,
  sealBatch,
  startAnchoring,
  type TestBatch,
} from './testing/anchoring.ts';

describe('chain-anchor', function () {
  this.timeout(60_000);
  let anchoring: Anchoring;
  before(async () => {
    anchoring = await startAnchoring();
  });
  after(() => anchoring?.stop());

  const getBatch = (batchId: string, tenant?: string) =>
    anchoring.registry.unary(anchorMethods.getBatch, create(GetBatchRequestSchema, { batchId }), asAdmin(tenant));
  const listBatches = (request: Parameters<typeof create<typeof ListBatchesRequestSchema>>[1], tenant?: string) =>
    anchoring.registry.unary(anchorMethods.listBatches, create(ListBatchesRequestSchema, request), asAdmin(tenant));
  const waitFor = (batchId: string, status: number) =>
    eventually(async () => (await getBatch(batchId)).status === status, 15_000);

  it('anchors a sealed batch on the chain and proves it', async () => {
    const { database } = anchoring.platform;
    const device = newId();
    const batch = await sealBatch(database, [newPoint(device), newPoint(device), newPoint(device)]);
    await waitFor(batch.batchId, AnchorBatch_Status.seen);
    const seen = await getBatch(batch.batchId);
    expect(seen.blockHeight).to.equal(0);
    expect(seen.confirmations).to.equal(0);
    expect(seen.attempts).to.equal(1);

    await anchoring.devchain.control('mine', { count: 1 });
    await waitFor(batch.batchId, AnchorBatch_Status.confirmed);
    const confirmed = await getBatch(batch.batchId);
    const state = await anchoring.devchain.state();
    expect(confirmed.blockHeight).to.equal(state['height']);
    expect(confirmed.blockHash).to.equal(state['block_hash']);
    expect(confirmed.confirmations).to.equal(1);
    expect(confirmed.anchorMode).to.equal(AnchoringPolicy_Mode.merkle);
    expect(confirmed.count).to.equal(3);
    expect(confirmed.merkleRoot).to.equal(toHex(merkleRoot(batch.leaves)));
    expect(confirmed.txid).to.equal(seen.txid);
    expect(confirmed.error).to.equal('');

    const { rows } = await database.system((tx) =>
      tx.query<{ raw_tx: Buffer; sealed_at: Date }>(
        'SELECT raw_tx, sealed_at FROM anchor_batches WHERE batch_id = $1',
        [batch.batchId],
      ),
    );
    const transaction = parseTransaction(rows[0]!.raw_tx);
    expect(transaction.inputs).to.have.length(1);
    expect(transaction.outputs).to.have.length(1);
    expect(findCommitment(transaction)).to.deep.equal({
      merkleRoot: merkleRoot(batch.leaves),
      batchId: batch.batchId,
      timestampSeconds: Math.floor(rows[0]!.sealed_at.getTime() / 1000),
      count: 3,
    });

    await anchoring.devchain.control('mine', { count: 4 });
    await eventually(async () => (await getBatch(batch.batchId)).confirmations === 5);
  });

  it('shows a batch to its own tenant only', async () => {
    const { batches } = await listBatches({});
    expect(batches).to.have.length(1);
    expect((await listBatches({}, 'other')).batches).to.deep.equal([]);
    for (const [id, tenant] of [
      [batches[0]!.batchId, 'other'],
      [newId(), undefined],
      ['nonsense', undefined],
    ] as const) {
      const error = await getBatch(id, tenant).catch((thrown: unknown) => thrown);
      expect(error).to.be.instanceOf(KelletError).with.property('code', 'NOT_FOUND');
    }
  });

  it('lists batches by status and mode, with pagination', async () => {
    const { database } = anchoring.platform;
    await anchoring.devchain.control('faults', { pause_mining: true });
    const device = newId();
    for (let i = 0; i < 3; i += 1) await sealBatch(database, [newPoint(device)], 'per_event');
    await eventually(async () => (await listBatches({ status: AnchorBatch_Status.seen })).batches.length === 3, 10_000);
    const first = await listBatches({ anchorMode: AnchoringPolicy_Mode.per_event, pageSize: 2 });
    expect(first.batches).to.have.length(2);
    const second = await listBatches({
      anchorMode: AnchoringPolicy_Mode.per_event,
      pageSize: 2,
      pageToken: first.nextPageToken,
    });
    expect(second.batches).to.have.length(1);
    expect(second.nextPageToken).to.equal('');
    const ids = [...first.batches, ...second.batches].map(({ batchId }) => batchId);
    expect(new Set(ids).size).to.equal(3);
    expect((await listBatches({ status: AnchorBatch_Status.confirmed })).batches).to.have.length(1);
    await anchoring.devchain.clearFaults();
    await anchoring.devchain.control('mine', { count: 1 });
    for (const id of ids) await waitFor(id, AnchorBatch_Status.confirmed);
  });

  it('turns callbacks into confirmations', async () => {
    const client = await connect({ servers: process.env['KELLET_TEST_NATS_URL']! });
    // Other tests confirm batches meanwhile, so that this one's event is not the last of its subject for long.
    const messages: string[] = [];
    let batch: TestBatch;
    let found: string | undefined;
    let txid = '';
    try {
      client.subscribe('anchor.confirmations', { callback: (_, message) => void messages.push(message.string()) });
      await client.flush();
      batch = await sealBatch(anchoring.platform.database, [newPoint(newId())]);
      await waitFor(batch.batchId, AnchorBatch_Status.seen);
      ({ txid } = await getBatch(batch.batchId));
      await anchoring.devchain.control('mine', { count: 1 });
      await eventually(async () => {
        found = messages.find((message) => message.includes(txid));
        return found !== undefined;
      }, 30_000);
    } finally {
      await client.close();
    }
    const event = JSON.parse(found!) as Record<string, unknown>;
    expect(event).to.include({ type: 'anchor.confirmations', subject: txid, tenantid: 'acme' });
    expect(event['data']).to.have.property('batch_id', batch.batchId);
    await waitFor(batch.batchId, AnchorBatch_Status.confirmed);
  });

  it('holds batches until the next day once anchors_per_day is used up, except per_event ones', async () => {
    const { database } = anchoring.platform;
    await database.system((tx) =>
      tx.query(`UPDATE tenants SET quotas = '{"anchors_per_day":2}' WHERE tenant_id = 'other'`),
    );
    const seal = (mode: 'merkle' | 'chain' | 'per_event') => sealBatch(database, [newPoint(newId(), 'other')], mode);
    const statusOf = async (batchId: string) => (await getBatch(batchId, 'other')).status;
    const seen = (batchId: string) =>
      eventually(async () => (await statusOf(batchId)) === AnchorBatch_Status.seen, 10_000);
    await seen((await seal('merkle')).batchId);
    await seen((await seal('chain')).batchId);
    const late = await seal('merkle');
    await seen((await seal('per_event')).batchId);
    expect(await statusOf(late.batchId)).to.equal(AnchorBatch_Status.sealed);
    expect(await anchoring.platform.metrics.metrics()).to.include('kellet_anchor_quota_waiting 1');
    await database.system((tx) => tx.query(`UPDATE anchor_usage SET day = day - 1 WHERE tenant_id = 'other'`));
    await seen(late.batchId);
    await database.system((tx) => tx.query(`UPDATE tenants SET quotas = '{}' WHERE tenant_id = 'other'`));
  });

  it('anchors a batch at once while another tenant has 2,000 over its quota, and those once the quota is raised', async () => {
    const { database } = anchoring.platform;
    const setQuota = (anchors: number) =>
      database.system((tx) =>
        tx.query(
          `UPDATE tenants SET quotas = jsonb_build_object('anchors_per_day', $1::int) WHERE tenant_id = 'other'`,
          [anchors],
        ),
      );
    await database.system((tx) => tx.query('DELETE FROM anchor_usage'));
    await setQuota(1);
    const first = await sealBatch(database, [newPoint(newId(), 'other')]);
    await eventually(async () => (await getBatch(first.batchId, 'other')).status !== AnchorBatch_Status.sealed, 10_000);
    await database.system((tx) =>
      tx.query(
        `INSERT INTO anchor_batches (tenant_id, batch_id, anchor_mode, status, writer_id, count, leaves, merkle_root, sealed_at)
         SELECT 'other', gen_random_uuid(), 'merkle', 'sealed', gen_random_uuid(), 1, hash, hash, now()
         FROM (SELECT sha256(convert_to(n::text, 'UTF8')) AS hash FROM generate_series(1, 2000) AS n)`,
      ),
    );
    const waiting = async () => {
      const { rows } = await database.system((tx) =>
        tx.query<{ n: number }>(
          `SELECT count(*)::int4 AS n FROM anchor_batches WHERE tenant_id = 'other' AND status = 'sealed'`,
        ),
      );
      return rows[0]!.n;
    };
    for (let i = 0; i < 3; i += 1) {
      const from = Date.now();
      const batch = await sealBatch(database, [newPoint(newId())]);
      await eventually(async () => (await getBatch(batch.batchId)).status !== AnchorBatch_Status.sealed, 10_000);
      expect(Date.now() - from).to.be.lessThan(5000);
    }
    expect(await waiting()).to.equal(2000);
    expect(await anchoring.platform.metrics.metrics()).to.include('kellet_anchor_quota_waiting 2000');
    await setQuota(4);
    await eventually(async () => (await waiting()) === 1997, 10_000);
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(await waiting()).to.equal(1997);
    await database.system((tx) =>
      tx.query(`DELETE FROM anchor_batches WHERE tenant_id = 'other' AND status = 'sealed'`),
    );
    await database.system((tx) => tx.query(`UPDATE tenants SET quotas = '{}' WHERE tenant_id = 'other'`));
  });

  it('counts its work in metrics', async () => {
    const text = await anchoring.platform.metrics.metrics();
    expect(text).to.match(/kellet_anchor_batches\{status="sealed"\} 0/);
    expect(text).to.match(/kellet_anchor_wallet_coins\{state="free"\} [1-9]/);
    expect(text).to.match(/kellet_anchor_submissions_total\{result="seen_on_network"\} [1-9]/);
    expect(text).to.match(/kellet_anchor_configured 1/);
  });
});

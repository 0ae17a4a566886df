// The state in which every fault test must end.
import { create, toJson } from '@bufbuild/protobuf';
import {
  VerifierService,
  VerifyHashRequestSchema,
  VerifyHashResponseSchema,
} from '@kellet/proto/es/kellet/v1/verifier_pb.ts';
import { fetchHeaders, pinsOfHeaders, toHex, verifyBundle } from '@kellet/verify';
import { expect } from 'chai';
import { eventually } from '../../platform/testing/eventually.ts';
import { type Anchoring, asAdmin, type TestBatch } from './anchoring.ts';
import { checkAnchoring } from './fsck.ts';

/** Returns the batch's current status. */
export async function statusOf({ platform }: Anchoring, batchId: string): Promise<string | undefined> {
  const { rows } = await platform.database.system((tx) =>
    tx.query<{ status: string }>('SELECT status FROM anchor_batches WHERE batch_id = $1', [batchId]),
  );
  return rows[0]?.status;
}

/** Waits until the batch has the given status. */
export async function reaches(anchoring: Anchoring, batch: TestBatch, status: string): Promise<void> {
  await eventually(async () => (await statusOf(anchoring, batch.batchId)) === status, 20_000);
}

/**
 * Mines until the batches are confirmed, then checks that each is on the chain exactly once, also according to the
 * processor; that the database is consistent; and that a bundle of each proves a point to someone who trusts only the
 * headers.
 */
export async function expectAnchored(anchoring: Anchoring, batches: readonly TestBatch[]): Promise<void> {
  const { devchain, platform, registry } = anchoring;
  // A lost connection may hold a lock until PostgreSQL ends its idle transaction, after two minutes.
  await eventually(async () => {
    await devchain.control('mine', { count: 1 });
    const statuses = await Promise.all(batches.map(({ batchId }) => statusOf(anchoring, batchId)));
    await new Promise((resolve) => setTimeout(resolve, 100));
    return statuses.every((status) => status === 'confirmed');
  }, 150_000);
  // Other transactions may be changing state, and a reorganisation may only be noticed with the next block.
  const settled = async () => {
    await devchain.control('mine', { count: 1 });
    return (await checkAnchoring(platform.database)).length === 0;
  };
  await eventually(settled).catch(() => undefined);
  expect(await checkAnchoring(platform.database)).to.deep.equal([]);
  const { height } = (await devchain.state()) as { height: number };
  const pins = pinsOfHeaders(await fetchHeaders(devchain.url, 90, height - 89), 'headers');
  for (const batch of batches) {
    expect(await minedAttempts(anchoring, batch.batchId), 'attempts on the chain').to.have.length(1);
    const request = create(VerifyHashRequestSchema, { dataHashHex: toHex(batch.leaves[0]!), includeBundle: true });
    const verify = () => registry.unary(VerifierService.method.verifyHash, request, asAdmin(batch.points[0]!.tenantId));
    // UNAVAILABLE while headers are being replaced.
    await eventually(async () =>
      verify().then(
        () => true,
        () => false,
      ),
    ).catch(() => undefined);
    const response = await verify();
    const document = toJson(VerifyHashResponseSchema, response, { alwaysEmitImplicit: true, useProtoFieldName: true });
    const verdict = verifyBundle(document, { pins });
    expect(verdict.verdict, verdict.reason).to.equal('proven');
  }
}

/** Returns the transactions of a batch that the processor reports as mined. */
async function minedAttempts({ platform, devchain }: Anchoring, batchId: string): Promise<string[]> {
  const { rows } = await platform.database.system((tx) =>
    tx.query<{ txid: string }>('SELECT txid FROM chain_transactions WHERE batch_id = $1', [batchId]),
  );
  const mined: string[] = [];
  for (const { txid } of rows) {
    const response = (await (await fetch(`${devchain.url}/v1/tx/${txid}`)).json()) as { txStatus?: string };
    if (response.txStatus === 'MINED') mined.push(txid);
  }
  return mined;
}

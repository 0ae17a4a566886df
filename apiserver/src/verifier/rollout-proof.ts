// The proof of a whole rollout, page by page: its results in the order in which they were reported, the batches they are in, and
// the headers that lead from one batch's block to the next, each once.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { AnchoringPolicy_Mode } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import type {
  GetRolloutProofRequest,
  RolloutProofSchema,
  RolloutResultSchema,
} from '@kellet/proto/es/kellet/v1/verifier_pb.ts';
import { equalBytes, ROLLOUT_PROOF_SCHEMA_VERSION, toHex } from '@kellet/verify';
import { storedBlockHashes, storedHeaders, storedTip } from '../chain-anchor/headers/header-chain.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { notFound, unavailable } from '../platform/errors.ts';
import { idField } from '../platform/requests/fields.ts';
import type { Paging } from '../platform/requests/paging.ts';
import { type LeafProof, proveLeaves, type ProvenBatch } from './proof.ts';
import {
  allLeaves,
  findRollout,
  firstLeaves,
  pageOfResults,
  type ProvenLeaf,
  provenLeaves,
  type ResultRow,
} from './proof-store.ts';

/** Where a page ends. */
interface Cursor {
  readonly resultId: string;
  /** The lowest and the highest header of the pages so far, and the hash of the latter; undefined: there was none. */
  readonly headers?: Span;
}

interface Span {
  readonly first: number;
  readonly last: number;
  readonly lastHash: string;
}

/** Headers shown beyond the latest block of a page, if there are any: the depth of its batches. */
const depth = 12;

/** Returns a page of the proof. Throws NOT_FOUND for a rollout that the tenant does not have. */
export async function rolloutProof(
  { database, paging }: { database: Database; paging: Paging },
  request: GetRolloutProofRequest,
  tenantId: string,
): Promise<MessageInitShape<typeof RolloutProofSchema>> {
  const rolloutId = idField('rollout_id', request.rolloutId);
  const scope = [tenantId, 'verify/rollouts', rolloutId];
  const page = paging.open<Cursor>(request, scope);
  const { rollout, found, rows, leaves } = await database.tenant(tenantId, async (tx) => {
    const rollout = await findRollout(tx, tenantId, rolloutId);
    if (!rollout) throw notFound('rollout_id');
    const found = await pageOfResults(tx, tenantId, rolloutId, page.after?.resultId, page.size + 1);
    const rows = found.slice(0, page.size);
    const places = rows.flatMap(({ batchId, leafIndex }) => (batchId === null ? [] : [{ batchId, index: leafIndex! }]));
    return { rollout, found, rows, leaves: await firstLeaves(tx, tenantId, places, provenLeaves) };
  });
  const { proofs, batches } = await proofsOf(rows, allLeaves(database, tenantId, leaves));
  const { headers, span } = await database.tenant(tenantId, (tx) => headersOf(tx, batches, page.after?.headers));
  const cut = paging.close(found, page, scope, ({ resultId }) => ({ resultId, ...(span && { headers: span }) }));
  return {
    schemaVersion: ROLLOUT_PROOF_SCHEMA_VERSION,
    tenantId,
    rolloutId,
    packageId: rollout.packageId,
    results: rows.map((row) => toResult(tenantId, row, proofs.get(row.resultId))),
    batches: batches.toSorted((a, b) => a.blockHeight - b.blockHeight || (a.batchId < b.batchId ? -1 : 1)).map(toBatch),
    blockHeaderChain: headers.map(({ height, raw }) => ({ height, header: toHex(raw) })),
    nextPageToken: cut.nextPageToken,
  };
}

/** What is shown of a batch: without its leaves and segments. */
type ShownBatch = Omit<ProvenBatch, 'leaves' | 'segments'>;

/** Returns the proofs of results by their ids, and their batches, of which few are in memory at a time with their leaves. */
async function proofsOf(
  rows: readonly ResultRow[],
  pages: AsyncIterable<readonly ProvenLeaf[]>,
): Promise<{ proofs: ReadonlyMap<string, LeafProof>; batches: readonly ShownBatch[] }> {
  const idOf = (batchId: string, index: number): string => `${batchId}/${index}`;
  const byPlace = new Map<string, LeafProof>();
  const batches = new Map<string, ShownBatch>();
  for await (const leaves of pages) {
    for (const { batch } of leaves) {
      const { leaves: _leaves, segments: _segments, ...shown } = batch;
      batches.set(batch.batchId, shown);
    }
    await proveLeaves(leaves, ({ batch, index }, proof) => byPlace.set(idOf(batch.batchId, index), proof));
  }
  const proofs = new Map(
    rows.flatMap(({ resultId, batchId, leafIndex }) => {
      const proof = batchId === null ? undefined : byPlace.get(idOf(batchId, leafIndex!));
      return proof ? [[resultId, proof] as const] : [];
    }),
  );
  return { proofs, batches: [...batches.values()] };
}

type StoredHeaders = Awaited<ReturnType<typeof storedHeaders>>;

const isReorganised = () => unavailable('the chain is being reorganised: try again');

/** Returns the headers that these batches need beyond those of the pages so far, and what all of them then span. */
async function headersOf(
  tx: Transaction,
  batches: readonly ShownBatch[],
  before: Span | undefined,
): Promise<{ headers: StoredHeaders; span: Span | undefined }> {
  if (batches.length === 0) return { headers: [], span: before };
  const heights = batches.map((batch) => batch.blockHeight);
  const first = Math.min(...heights, before?.first ?? Infinity);
  const tip = (await storedTip(tx)) ?? 0;
  const last = Math.max(Math.min(tip, Math.max(...heights) + depth), before?.last ?? 0);
  const headers = before
    ? [
        ...(await storedHeaders(tx, first, before.first - first)),
        ...(await storedHeaders(tx, before.last, last - before.last + 1)),
      ]
    : await storedHeaders(tx, first, last - first + 1);
  const blocks = new Map(headers.map((header) => [header.height, header.blockHash]));
  // A change below the last header of the previous page also changes that header's hash.
  if (before && blocks.get(before.last) !== before.lastHash) throw isReorganised();
  // A proof is withdrawn some time after its block has been replaced: the headers of the pages before may be newer.
  const stored = new Map([...(await storedBlockHashes(tx, heights)), ...blocks]);
  if (batches.some((batch) => stored.get(batch.blockHeight) !== batch.blockHash)) throw isReorganised();
  return {
    headers: headers.filter(({ height }) => height !== before?.last),
    span: { first, last, lastHash: blocks.get(last)! },
  };
}

function toResult(
  tenantId: string,
  row: ResultRow,
  proof: LeafProof | undefined,
): MessageInitShape<typeof RolloutResultSchema> {
  const canonicalHashInputs = {
    version: 1,
    tenantId,
    deviceId: row.deviceId,
    timestamp: Number(row.time / 1_000_000_000n),
    payload: row.payload,
  };
  const result = { canonicalHashInputs, dataHash: toHex(row.dataHash) };
  if (!proof) return result;
  if (!equalBytes(proof.dataHash, row.dataHash)) throw new Error(`result ${row.resultId} is not at its place`);
  const merklePath = proof.path.map(({ hash, isRight }) => ({ hash: toHex(hash), isRight }));
  return { ...result, batchId: row.batchId!, leafIndex: proof.leafIndex, merklePath };
}

const toBatch = (batch: ShownBatch) => ({
  batchId: batch.batchId,
  anchorMode: AnchoringPolicy_Mode[batch.mode],
  count: batch.count,
  merkleRoot: toHex(batch.merkleRoot),
  txid: batch.txid,
  rawTx: toHex(batch.rawTx),
  bumpHex: toHex(batch.bump),
  blockHeight: batch.blockHeight,
});

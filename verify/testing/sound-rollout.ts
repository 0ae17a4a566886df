// Creates sound proofs of rollouts for tests: real trees, transactions and blocks, mined at regtest difficulty.
import {
  type AnchoredBatch,
  blockHash,
  buildBump,
  canonicalPayload,
  commitmentScript,
  leafHash,
  type LeafInputs,
  merkleLevels,
  merklePath,
  type RolloutProofPage,
  serialiseBump,
  serialiseTransaction,
  sha256d,
  toHex,
  transactionId,
  txidOf,
} from '../src/index.ts';
import { anchoringTransaction, mineHeader, SEALED_AT, TENANT_ID } from './sound-bundle.ts';

const ROLLOUT_ID = '01a1fe36-b8ce-77b2-8dcc-b7639ec2c922';
const FIRST_BLOCK = 900;

const uuid = (kind: number, n: number): string => `0198f3a2-7c41-7d3e-8${kind}52-${String(n).padStart(12, '0')}`;

const PACKAGE_ID = uuid(7, 0);

/** Returns the inputs of the leaf of the n-th result; every tenth device failed. */
function resultInputs(n: number, failure = 'failure'): LeafInputs {
  const failed = n % 10 === 9;
  const payload = canonicalPayload(
    {},
    {
      'kellet.ota.result_id': uuid(1, n),
      'kellet.ota.rollout_id': ROLLOUT_ID,
      'kellet.ota.result': failed ? failure : 'successful',
      'kellet.ota.package_id': PACKAGE_ID,
      'kellet.ota.package_version': '2.0.0',
      'kellet.ota.reported_version': failed ? '1.0.0' : '2.0.0',
    },
  );
  return { tenantId: TENANT_ID, deviceId: uuid(2, n), timestampSeconds: SEALED_AT + n, payload };
}

/** Options of a proof. */
export interface RolloutOptions {
  /** Batches, each in a block of its own, and the results of each, besides as many leaves of other points. */
  batches?: number;
  perBatch?: number;
  /** Results at the end that are not anchored. */
  pending?: number;
  /** What a failure is called. */
  failure?: string;
}

/** Returns the pages of a proof that passes every check, one per batch. The last block has one header after it. */
export function soundRollout({
  batches = 3,
  perBatch = 10,
  pending = 0,
  failure = 'failure',
}: RolloutOptions = {}): RolloutProofPage[] {
  const pages: RolloutProofPage[] = [];
  let previous = sha256d(Uint8Array.of(1));
  for (let b = 0; b < batches; b += 1) {
    const inputs = Array.from({ length: perBatch }, (_, i) => resultInputs(b * perBatch + i, failure));
    const leaves = inputs.flatMap((each, i) => [leafHash(each), sha256d(Uint8Array.of(3, b, i))]);
    const levels = merkleLevels(leaves);
    const root = levels.at(-1)![0]!;
    const transaction = anchoringTransaction(root, leaves.length);
    const commitment = { merkleRoot: root, batchId: uuid(4, b), timestampSeconds: SEALED_AT, count: leaves.length };
    transaction.outputs[0]!.lockingScript = commitmentScript(commitment);
    const raw = serialiseTransaction(transaction);
    const txids = [sha256d(Uint8Array.of(5, b)), transactionId(raw)];
    const blockRoot = merkleLevels(txids).at(-1)![0]!;
    const header = mineHeader(previous, blockRoot, SEALED_AT + b);
    const next = mineHeader(blockHash(header), sha256d(Uint8Array.of(6, b)), SEALED_AT + b);
    previous = blockHash(header);
    const height = FIRST_BLOCK + b;
    const isLast = b === batches - 1;
    const batch: AnchoredBatch = {
      batch_id: uuid(4, b),
      anchor_mode: 'merkle',
      count: leaves.length,
      merkle_root: toHex(root),
      txid: txidOf(raw),
      raw_tx: toHex(raw),
      bump_hex: toHex(serialiseBump(buildBump(height, txids, 1))),
      block_height: height,
    };
    pages.push({
      schema_version: '1.0',
      tenant_id: TENANT_ID,
      rollout_id: ROLLOUT_ID,
      package_id: PACKAGE_ID,
      results: inputs.map((each, i) => ({
        canonical_hash_inputs: {
          version: 1,
          tenant_id: each.tenantId,
          device_id: each.deviceId,
          timestamp: each.timestampSeconds,
          payload: each.payload,
        },
        data_hash: toHex(leaves[i * 2]!),
        batch_id: batch.batch_id,
        leaf_index: i * 2,
        merkle_path: merklePath(levels, i * 2).map(({ hash, isRight }) => ({ hash: toHex(hash), is_right: isRight })),
      })),
      batches: [batch],
      block_header_chain: [
        { height, header: toHex(header) },
        ...(isLast ? [{ height: height + 1, header: toHex(next) }] : []),
      ],
      next_page_token: isLast ? '' : `after ${b}`,
    });
  }
  for (let n = batches * perBatch; n < batches * perBatch + pending; n += 1) {
    const { tenantId, deviceId, timestampSeconds, payload } = resultInputs(n);
    pages.at(-1)!.results.push({
      canonical_hash_inputs: {
        version: 1,
        tenant_id: tenantId,
        device_id: deviceId,
        timestamp: timestampSeconds,
        payload,
      },
      data_hash: toHex(leafHash(resultInputs(n))),
      batch_id: '',
      leaf_index: 0,
      merkle_path: [],
    });
  }
  return pages;
}

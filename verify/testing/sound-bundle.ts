// Creates sound bundles for tests: real trees, a real transaction, a real block, and headers mined at regtest
// difficulty.
import {
  type AnchorMode,
  blockHash,
  buildBeef,
  buildBump,
  canonicalPayload,
  commitmentScript,
  leafHash,
  type LeafInputs,
  meetsTarget,
  merkleLevels,
  merklePath,
  merkleRoot,
  type MerkleStep,
  type ProofBundle,
  segmentHead,
  segmentPath,
  serialiseBump,
  serialiseHeader,
  serialiseTransaction,
  sha256d,
  targetOf,
  toHex,
  type Transaction,
  transactionId,
  txidOf,
  VERIFICATION_STEPS,
} from '../src/index.ts';

export const TENANT_ID = 'acme';
export const BATCH_ID = '0198f3a2-7c41-7d3e-9b52-4f6a8c1e2d30';
export const SEALED_AT = 1_760_000_030;
const REGTEST_BITS = 0x207f_ffff;

/** Options of a bundle; the proven point is the second to last of `points`, or the only one. */
export interface BundleOptions {
  mode?: AnchorMode;
  /** Leaves of the batch; in chain mode, points of one segment. */
  points?: number;
  /** In chain mode: segments of the batch. */
  segments?: number;
  headers?: number;
  blockHeight?: number;
  /** Transactions in the block. */
  transactions?: number;
  /** The proven point, instead of one of a device. */
  point?: LeafInputs;
}

/** Returns the leaf inputs of point `i`, with values that a device might send. */
function pointInputs(i: number): LeafInputs {
  const payload = canonicalPayload(
    { temperature: 20 + i / 8, humidity: 41 },
    { state: i % 2 === 0 ? 'idle' : 'läuft' },
  );
  return {
    tenantId: TENANT_ID,
    deviceId: '0198f39d-5b7e-7aa1-8c11-d2e3f4a5b6c7',
    timestampSeconds: 1_760_000_000 + i,
    payload,
  };
}

/** Mines a header on `previousHash`; about every second nonce meets the target. */
export function mineHeader(previousHash: Uint8Array, root: Uint8Array, time: number): Uint8Array {
  for (let nonce = 0; ; nonce++) {
    const raw = serialiseHeader({
      version: 0x2000_0000,
      previousHash,
      merkleRoot: root,
      time,
      bits: REGTEST_BITS,
      nonce,
    });
    if (meetsTarget(blockHash(raw), targetOf(REGTEST_BITS))) return raw;
  }
}

/** Returns a chain of `count` mined headers, the first with the Merkle root `root`. */
export function mineHeaders(root: Uint8Array, count: number): Uint8Array[] {
  const headers: Uint8Array[] = [];
  let previous = sha256d(Uint8Array.of(1, 2, 3));
  for (let i = 0; i < count; i++) {
    const raw = mineHeader(previous, i === 0 ? root : sha256d(Uint8Array.of(i)), SEALED_AT + 600 * (i + 1));
    headers.push(raw);
    previous = blockHash(raw);
  }
  return headers;
}

/** Returns an anchoring transaction that commits to a root. */
export function anchoringTransaction(root: Uint8Array, count: number): Transaction {
  const change = Uint8Array.of(0x76, 0xa9, 0x14, ...new Uint8Array(20).fill(7), 0x88, 0xac);
  return {
    version: 1,
    inputs: [
      {
        previousTxid: sha256d(Uint8Array.of(9)),
        previousOutputIndex: 1,
        unlockingScript: new Uint8Array(107).fill(0x47),
        sequence: 0xffff_ffff,
      },
    ],
    outputs: [
      {
        satoshis: 0n,
        lockingScript: commitmentScript({ merkleRoot: root, batchId: BATCH_ID, timestampSeconds: SEALED_AT, count }),
      },
      { satoshis: 99_999n, lockingScript: change },
    ],
    lockTime: 0,
  };
}

interface Batch {
  root: Uint8Array;
  count: number;
  leafIndex: number;
  path: MerkleStep[];
}

function plainBatch(leaves: Uint8Array[], proven: number): Batch {
  const levels = merkleLevels(leaves);
  return { root: merkleRoot(leaves), count: leaves.length, leafIndex: proven, path: merklePath(levels, proven) };
}

function chainBatch(leaves: Uint8Array[], proven: number, segments: number): Batch {
  const previousHead = sha256d(Uint8Array.of(5));
  const heads = Array.from({ length: segments }, (_, i) => sha256d(Uint8Array.of(6, i)));
  const segmentIndex = segments - 1;
  heads[segmentIndex] = segmentHead(previousHead, leaves);
  const batch = plainBatch(heads, segmentIndex);
  return { ...batch, path: [...segmentPath(previousHead, leaves, proven), ...batch.path] };
}

/** Returns a bundle that passes every step. */
export function soundBundle(options: BundleOptions = {}): ProofBundle {
  const { mode = 'merkle', headers: headerCount = 3, blockHeight = 871_203, transactions = 5 } = options;
  const points = mode === 'per_event' ? 1 : (options.points ?? 11);
  const proven = Math.max(0, points - 2);
  const inputs = options.point ?? pointInputs(proven);
  const leaves = Array.from({ length: points }, (_, i) => leafHash(i === proven ? inputs : pointInputs(i)));
  const batch = mode === 'chain' ? chainBatch(leaves, proven, options.segments ?? 3) : plainBatch(leaves, proven);
  const raw = serialiseTransaction(anchoringTransaction(batch.root, batch.count));
  const txids = Array.from({ length: transactions }, (_, i) => sha256d(Uint8Array.of(8, i)));
  txids[transactions - 1] = transactionId(raw);
  const bump = buildBump(blockHeight, txids, transactions - 1);
  const headers = mineHeaders(merkleRoot(txids), headerCount);
  return {
    schema_version: '1.0',
    canonical_hash_inputs: {
      version: 1,
      tenant_id: inputs.tenantId,
      device_id: inputs.deviceId,
      timestamp: inputs.timestampSeconds,
      payload: inputs.payload,
    },
    data_hash: toHex(leaves[proven]!),
    leaf_index: batch.leafIndex,
    count: batch.count,
    merkle_path: batch.path.map((step) => ({ hash: toHex(step.hash), is_right: step.isRight })),
    merkle_root: toHex(batch.root),
    txid: txidOf(raw),
    raw_tx: toHex(raw),
    beef_hex: toHex(buildBeef(raw, bump)),
    bump_hex: toHex(serialiseBump(bump)),
    block_header_chain: headers.map((header, i) => ({ height: blockHeight + i, header: toHex(header) })),
    confirmation_depth: headerCount,
    anchor_mode: mode,
    verification_steps: [...VERIFICATION_STEPS],
  };
}

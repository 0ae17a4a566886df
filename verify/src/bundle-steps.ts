// The steps of verifying a bundle. Each throws RefutedError, or MalformedError for malformed bytes.
import { parseBeef } from './beef.ts';
import { bumpRootFor, parseBump, serialiseBump } from './bump.ts';
import type { ProofBundle } from './bundle-schema.ts';
import { equalBytes, fromDisplayHex, fromHex, toDisplayHex, toHex } from './bytes.ts';
import { checkChainPath } from './chain-mode.ts';
import { type Commitment, findCommitment } from './commitment.ts';
import { RefutedError } from './errors.ts';
import { checkHeaderChain, type HeaderChain } from './headers.ts';
import { leafHash, parsePayload } from './leaf-hash.ts';
import { checkMerklePath } from './merkle.ts';
import type { Pin } from './pins.ts';
import { parseTransaction, type Transaction, transactionId } from './transaction.ts';
import type { Statement } from './verdict.ts';

/** Checks that the inputs hash to data_hash and returns the leaf hash. */
export function checkLeaf(bundle: Pick<ProofBundle, 'canonical_hash_inputs' | 'data_hash'>): Uint8Array {
  const inputs = bundle.canonical_hash_inputs;
  parsePayload(inputs.payload);
  const leaf = leafHash({
    tenantId: inputs.tenant_id,
    deviceId: inputs.device_id,
    timestampSeconds: inputs.timestamp,
    payload: inputs.payload,
  });
  if (toHex(leaf) !== bundle.data_hash) {
    throw new RefutedError(`the inputs hash to ${toHex(leaf)}, not to data_hash ${bundle.data_hash}`);
  }
  return leaf;
}

/** Checks that the path leads to merkle_root and is that of the leaf in a batch of this mode and count. */
export function checkPath(
  bundle: Pick<ProofBundle, 'merkle_path' | 'merkle_root' | 'anchor_mode' | 'count' | 'leaf_index'>,
  leaf: Uint8Array,
): void {
  const path = bundle.merkle_path.map((step) => ({ hash: fromHex(step.hash), isRight: step.is_right }));
  const { anchor_mode: mode, count, leaf_index: index } = bundle;
  if (mode === 'per_event' && count !== 1) throw new RefutedError(`per_event commits to one point, not to ${count}`);
  const check = mode === 'chain' ? checkChainPath : checkMerklePath;
  const root = toHex(check(leaf, path, count, index));
  if (root !== bundle.merkle_root) throw new RefutedError(`the path leads to ${root}, not to merkle_root`);
}

/** Checks that raw_tx has the id txid. */
export function checkTransactionId(bundle: Pick<ProofBundle, 'raw_tx' | 'txid'>): Transaction {
  const raw = fromHex(bundle.raw_tx);
  const transaction = parseTransaction(raw);
  const txid = toDisplayHex(transactionId(raw));
  if (txid !== bundle.txid) throw new RefutedError(`raw_tx hashes to ${txid}, not to txid ${bundle.txid}`);
  return transaction;
}

/** Checks that raw_tx has the id txid and that beef_hex contains exactly it and bump_hex. */
export function checkTransaction(bundle: ProofBundle): Transaction {
  const transaction = checkTransactionId(bundle);
  // The BEEF carries no information of its own, so it is compared as a whole; parsing it gives a specific error for a
  // broken one.
  const beef = parseBeef(fromHex(bundle.beef_hex));
  const [only] = beef.transactions;
  if (beef.transactions.length !== 1 || toHex(only!.raw) !== bundle.raw_tx) {
    throw new RefutedError('beef_hex does not contain exactly raw_tx');
  }
  if (beef.bumps.length !== 1 || toHex(serialiseBump(beef.bumps[0]!)) !== bundle.bump_hex) {
    throw new RefutedError('beef_hex does not contain exactly bump_hex');
  }
  return transaction;
}

/** Checks that the transaction commits to this root and count. */
export function checkCommitment(
  bundle: Pick<ProofBundle, 'merkle_root' | 'count'>,
  transaction: Transaction,
): Commitment {
  const commitment = findCommitment(transaction);
  const root = toHex(commitment.merkleRoot);
  if (root !== bundle.merkle_root) throw new RefutedError(`the transaction commits to root ${root}`);
  if (commitment.count !== bundle.count)
    throw new RefutedError(`the transaction commits to ${commitment.count} leaves`);
  return commitment;
}

/** Checks that bump_hex contains txid and is for the block of the first header; returns the root it leads to. */
export function checkBump(bundle: ProofBundle): Uint8Array {
  const bump = parseBump(fromHex(bundle.bump_hex));
  const { height } = bundle.block_header_chain[0]!;
  if (bump.blockHeight !== height) {
    throw new RefutedError(`bump_hex is for block ${bump.blockHeight}, the first header for block ${height}`);
  }
  return bumpRootFor(bump, fromDisplayHex(bundle.txid));
}

/** Checks that the headers form a chain that starts with the block whose Merkle root is `blockRoot`. */
export function checkHeaders(bundle: ProofBundle, blockRoot: Uint8Array): HeaderChain {
  const chain = checkHeaderChain(
    bundle.block_header_chain.map(({ height, header }) => ({ height, raw: fromHex(header) })),
  );
  if (!equalBytes(chain.headers[0]!.header.merkleRoot, blockRoot)) {
    throw new RefutedError(`the BUMP leads to ${toDisplayHex(blockRoot)}, which is not the Merkle root of the block`);
  }
  if (bundle.confirmation_depth < chain.headers.length) {
    throw new RefutedError(
      `confirmation_depth ${bundle.confirmation_depth} is below the ${chain.headers.length} shown`,
    );
  }
  return chain;
}

/** Returns what is proven once all checks above have passed. */
export function stateOf(bundle: ProofBundle, commitment: Commitment, chain: HeaderChain): Statement {
  const inputs = bundle.canonical_hash_inputs;
  const block = chain.headers[0]!;
  return {
    tenant_id: inputs.tenant_id,
    device_id: inputs.device_id,
    timestamp: inputs.timestamp,
    payload: inputs.payload,
    data_hash: bundle.data_hash,
    anchor_mode: bundle.anchor_mode,
    batch_id: commitment.batchId,
    leaf_index: bundle.leaf_index,
    count: commitment.count,
    merkle_root: bundle.merkle_root,
    committed_at: commitment.timestampSeconds,
    txid: bundle.txid,
    block_height: block.height,
    block_hash: toDisplayHex(block.hash),
    block_time: block.header.time,
    claimed_depth: bundle.confirmation_depth,
    proven_depth: chain.headers.length,
    tip_hash: toDisplayHex(chain.headers.at(-1)!.hash),
    work: chain.work.toString(),
  };
}

/**
 * Returns the first pin among the headers, or undefined. Throws if any pin contradicts them or the block before them.
 */
export function findPin(chain: HeaderChain, pins: readonly Pin[]): Pin | undefined {
  const { height: first, header } = chain.headers[0]!;
  const known = new Map(chain.headers.map((block) => [block.height, toDisplayHex(block.hash)]));
  known.set(first - 1, toDisplayHex(header.previousHash));
  for (const pin of pins) {
    const hash = known.get(pin.height);
    if (hash !== undefined && hash !== pin.hash) {
      throw new RefutedError(`the ${pin.source} has block ${pin.hash} at height ${pin.height}, the bundle ${hash}`);
    }
  }
  return pins.find((pin) => pin.height >= first && known.has(pin.height));
}

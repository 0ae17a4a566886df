// The proof record around a bundle in a response of verify/hash: it must say nothing else than the bundle proves.
import canonicalize from 'canonicalize';
import type { ProofBundle } from './bundle-schema.ts';
import { RefutedError } from './errors.ts';
import type { Statement } from './verdict.ts';

/**
 * Checks those fields of a response that its bundle settles. Others, such as confirmed_at, are the service's word.
 * @throws {RefutedError} naming the field that differs
 */
export function checkRecord(
  record: Readonly<Record<string, unknown>>,
  bundle: ProofBundle,
  statement: Statement,
): void {
  const settled: Record<string, unknown> = {
    tenant_id: statement.tenant_id,
    device_id: statement.device_id,
    data_hash: statement.data_hash,
    anchor_mode: statement.anchor_mode,
    batch_id: statement.batch_id,
    leaf_index: statement.leaf_index,
    count: statement.count,
    merkle_root: statement.merkle_root,
    merkle_path: bundle.merkle_path,
    txid: statement.txid,
    block_height: statement.block_height,
    block_hash: statement.block_hash,
    beef_hex: bundle.beef_hex,
  };
  for (const [field, proven] of Object.entries(settled)) {
    if (!Object.hasOwn(record, field)) continue;
    const said = canonicalText(record[field]);
    if (said !== canonicalize(proven)) throw new RefutedError(`the field ${field} beside the bundle says ${said}`);
  }
}

/** A value in canonical form. What has none (a number out of range, half a surrogate pair) equals nothing that is proven. */
function canonicalText(value: unknown): string {
  try {
    return canonicalize(value) ?? 'nothing';
  } catch {
    return 'something without a canonical form';
  }
}

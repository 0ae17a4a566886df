// The proof record around a bundle in a verify/hash response: it must not contradict the bundle.
import canonicalize from 'canonicalize';
import type { ProofBundle } from './bundle-schema.ts';
import { RefutedError } from './errors.ts';
import type { Statement } from './verdict.ts';

/**
 * Checks the fields of a response that its bundle determines, its own among them, whose values could be taken for
 * proven ones. Others, such as confirmed_at, cannot be verified.
 * @throws {RefutedError} naming the field that differs
 */
export function checkRecord(
  record: Readonly<Record<string, unknown>>,
  bundle: ProofBundle,
  statement: Statement,
): void {
  const settled: Record<string, unknown> = {
    ...bundle,
    tenant_id: statement.tenant_id,
    device_id: statement.device_id,
    data_hash: statement.data_hash,
    anchor_mode: statement.anchor_mode,
    batch_id: statement.batch_id,
    leaf_index: statement.leaf_index,
    count: statement.count,
    merkle_root: statement.merkle_root,
    txid: statement.txid,
    block_height: statement.block_height,
    block_hash: statement.block_hash,
  };
  for (const [field, proven] of Object.entries(settled)) {
    if (!Object.hasOwn(record, field)) continue;
    const said = canonicalText(record[field]);
    if (said !== canonicalize(proven))
      throw new RefutedError(`the field ${field} of the response is ${said}, unlike in the bundle`);
  }
}

/**
 * Returns a value in canonical form. One without such a form (a number out of range, half a surrogate pair) equals no
 * proven value.
 */
function canonicalText(value: unknown): string {
  try {
    return canonicalize(value) ?? 'nothing';
  } catch {
    return 'something without a canonical form';
  }
}

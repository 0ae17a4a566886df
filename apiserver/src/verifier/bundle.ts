// Builds the proof bundle: everything a third party needs to check a point without this service.
import {
  BUNDLE_SCHEMA_VERSION,
  type HeaderAtHeight,
  LEAF_VERSION,
  type ProofBundle,
  toHex,
  VERIFICATION_STEPS,
} from '@kellet/verify';
import type { HashedPoint } from '../telemetry/read/point-lookup.ts';
import { beefOf, type LeafProof, type ProvenBatch } from './proof.ts';

/** The contents of a bundle. */
export interface BundleParts {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly batch: ProvenBatch;
  readonly proof: LeafProof;
  readonly point: HashedPoint;
  /** Headers from the batch's block on, at least that one. */
  readonly headers: readonly HeaderAtHeight[];
  readonly tip: number;
}

/** Builds the bundle; field names are those of the published schema. */
export function buildBundle({ tenantId, deviceId, batch, proof, point, headers, tip }: BundleParts): ProofBundle {
  return {
    schema_version: BUNDLE_SCHEMA_VERSION,
    canonical_hash_inputs: {
      version: LEAF_VERSION,
      tenant_id: tenantId,
      device_id: deviceId,
      timestamp: Number(point.time / 1_000_000_000n),
      payload: point.payload,
    },
    data_hash: toHex(proof.dataHash),
    leaf_index: proof.leafIndex,
    count: batch.count,
    merkle_path: proof.path.map(({ hash, isRight }) => ({ hash: toHex(hash), is_right: isRight })),
    merkle_root: toHex(batch.merkleRoot),
    txid: batch.txid,
    raw_tx: toHex(batch.rawTx),
    beef_hex: toHex(beefOf(batch)),
    bump_hex: toHex(batch.bump),
    block_header_chain: headers.map(({ height, raw }) => ({ height, header: toHex(raw) })),
    confirmation_depth: tip - batch.blockHeight + 1,
    anchor_mode: batch.mode,
    verification_steps: [...VERIFICATION_STEPS],
  };
}

// A page of a rollout proof as a document: its published JSON Schema and its type.
import schema from '../schema/rollout-proof-1.0.json' with { type: 'json' };
import type { AnchorMode, ProofBundle } from './bundle-schema.ts';
import { MalformedError } from './errors.ts';
import { type Schema, violation } from './json-schema.ts';

/** The published schema of a page (draft 2020-12). */
export const ROLLOUT_PROOF_SCHEMA: Schema = schema;

/** The schema version this library supports. */
export const ROLLOUT_PROOF_SCHEMA_VERSION = '1.0';

/** A result that a device reported. */
export type RolloutResult = Pick<ProofBundle, 'canonical_hash_inputs' | 'data_hash' | 'leaf_index' | 'merkle_path'> & {
  /** Empty while it is not anchored. */
  batch_id: string;
};

/** A batch of results. */
export interface AnchoredBatch {
  batch_id: string;
  anchor_mode: AnchorMode;
  count: number;
  merkle_root: string;
  txid: string;
  raw_tx: string;
  bump_hex: string;
  block_height: number;
}

/** A page; the schema describes each field. */
export interface RolloutProofPage {
  schema_version: typeof ROLLOUT_PROOF_SCHEMA_VERSION;
  tenant_id: string;
  rollout_id: string;
  package_id: string;
  results: RolloutResult[];
  batches: AnchoredBatch[];
  block_header_chain: ProofBundle['block_header_chain'];
  next_page_token: string;
}

/** Reports whether a parsed JSON value looks like a page, valid or not, rather than a bundle of one point. */
export const isRolloutProof = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && Object.hasOwn(value, 'rollout_id');

/**
 * Reads a parsed JSON value as a page.
 * @throws {MalformedError} if it is none, with the location in the document and in the schema
 */
export function readRolloutPage(value: unknown): RolloutProofPage {
  const found = violation(ROLLOUT_PROOF_SCHEMA, value);
  if (found !== undefined) {
    throw new MalformedError(`${found.instancePath || 'the page'} ${found.message} (schema ${found.schemaPath})`);
  }
  return value as RolloutProofPage;
}

// The proof bundle as a document: its published JSON Schema, its type, and parsing from text or a response.
import schema from '../schema/proof-bundle-1.0.json' with { type: 'json' };
import { MalformedError } from './errors.ts';
import { type Schema, violation } from './json-schema.ts';

/** The published schema (draft 2020-12), as returned by `GET /api/v1/verify/schema`. */
export const PROOF_BUNDLE_SCHEMA: Schema = schema;

/** The schema version this library supports. */
export const BUNDLE_SCHEMA_VERSION = '1.0';

/** Maximum number of headers in a bundle. */
export const MAXIMUM_BUNDLE_HEADERS = schema.properties.block_header_chain.maxItems;

export type AnchorMode = 'merkle' | 'per_event' | 'chain';

/** A proof bundle; the schema describes each field. */
export interface ProofBundle {
  schema_version: typeof BUNDLE_SCHEMA_VERSION;
  canonical_hash_inputs: { version: 1; tenant_id: string; device_id: string; timestamp: number; payload: string };
  data_hash: string;
  leaf_index: number;
  count: number;
  merkle_path: { hash: string; is_right: boolean }[];
  merkle_root: string;
  txid: string;
  raw_tx: string;
  beef_hex: string;
  bump_hex: string;
  block_header_chain: { height: number; header: string }[];
  confirmation_depth: number;
  anchor_mode: AnchorMode;
  verification_steps: string[];
}

/** The value of `verification_steps`: the procedure in words. */
export const VERIFICATION_STEPS: readonly string[] = [
  'Leaf: SHA256d of 0x01, the lengths (2 bytes) and bytes of tenant_id and device_id, the timestamp (8 bytes) and the payload must be data_hash.',
  'Path: hashing data_hash with each step of merkle_path, on the side it names, must give merkle_root; the path must be that of leaf leaf_index among count leaves.',
  'Transaction: SHA256d of raw_tx must be txid (bytes reversed); beef_hex must hold the same transaction and bump_hex.',
  'Commitment: the one output with OP_FALSE OP_RETURN must hold KELLET, merkle_root, the batch id, a timestamp and count.',
  'Block: hashing txid along bump_hex must give the Merkle root of the first header of block_header_chain.',
  'Chain: each header must name the hash of the one before it, and each hash must meet the target of its header.',
  'Pin: a header of the chain must be one that you trust: a checkpoint, a headers file or a header source of your own.',
];

/** The fields of a verify/hash response. Others beside a bundle would be verified by nobody, and could be taken for proven. */
const RESPONSE_FIELDS: ReadonlySet<string> = new Set([
  ...Object.keys(schema.properties),
  ...['tenant_id', 'device_id', 'batch_id', 'block_height', 'block_hash', 'confirmed_at', 'bundle'],
]);

/** A bundle, and the surrounding verify/hash response if there was one. */
export interface BundleDocument {
  bundle: ProofBundle;
  record?: Readonly<Record<string, unknown>>;
}

/**
 * Reads a parsed JSON value as a bundle, or as a verify/hash response with one in its field `bundle`.
 * @throws {MalformedError} if it is neither, with the location in the document and in the schema
 */
export function readBundleDocument(value: unknown): BundleDocument {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new MalformedError('expected a proof bundle, or a response of verify/hash with the field bundle: an object');
  }
  const document = value as Readonly<Record<string, unknown>>;
  if (Object.hasOwn(document, 'schema_version')) return { bundle: readBundle(document) };
  if (Object.hasOwn(document, 'bundle')) {
    const other = Object.keys(document).find((name) => !RESPONSE_FIELDS.has(name));
    if (other !== undefined) throw new MalformedError(`the response must not have the field ${JSON.stringify(other)}`);
    return { bundle: readBundle(document['bundle']), record: document };
  }
  const hint = Object.hasOwn(document, 'beef_hex')
    ? '; this is a proof record: request it with include_bundle=true'
    : '';
  throw new MalformedError(
    `expected a proof bundle (it has schema_version), or a response of verify/hash with the field bundle${hint}`,
  );
}

function readBundle(value: unknown): ProofBundle {
  const found = violation(PROOF_BUNDLE_SCHEMA, value);
  if (found !== undefined) {
    throw new MalformedError(`${found.instancePath || 'the bundle'} ${found.message} (schema ${found.schemaPath})`);
  }
  return value as ProofBundle;
}

// The leaf hash of a telemetry point and its canonical payload.
import canonicalize from 'canonicalize';
import { toHex } from './bytes.ts';
import { MalformedError, messageOf } from './errors.ts';
import { sha256d } from './sha256.ts';

/** The version byte that starts every preimage. */
export const LEAF_VERSION = 1;

/** The hashed fields: `timestampSeconds` in whole Unix seconds (floored), `payload` as the exact JCS text. */
export interface LeafInputs {
  tenantId: string;
  deviceId: string;
  timestampSeconds: number;
  payload: string;
}

/** Values by key; use a Map for untrusted keys, which may be `__proto__`. */
export type Values<T> = Readonly<Record<string, T>> | ReadonlyMap<string, T>;

const utf8 = new TextEncoder();

/**
 * Returns the payload of a point in RFC 8785 canonical form: `{"numeric_values":{…},"string_values":{…}}`, both always
 * present. Includes own keys only, and all of them, even `__proto__`; −0 is written as 0.
 * @throws {MalformedError} for NaN, an infinity, a value of another type, or ill-formed Unicode
 */
export function canonicalPayload(numericValues: Values<number>, stringValues: Values<string>): string {
  return canonicalJson({
    numeric_values: ownValues(numericValues, 'numeric_values', 'number'),
    string_values: ownValues(stringValues, 'string_values', 'string'),
  });
}

function ownValues<T>(values: Values<T>, field: string, type: 'number' | 'string'): Record<string, T> {
  // Without a prototype, `__proto__` is a normal key.
  const own = Object.create(null) as Record<string, T>;
  for (const [key, value] of values instanceof Map ? values : Object.entries(values as Record<string, T>)) {
    if (typeof value !== type) throw new MalformedError(`${field}[${JSON.stringify(key)}] is not a ${type}`);
    own[key as string] = value as T;
  }
  return own;
}

/**
 * Returns the canonical JSON of a value (RFC 8785).
 * @throws {MalformedError} if it has none
 */
export function canonicalJson(value: unknown): string {
  try {
    return canonicalize(value)!;
  } catch (error) {
    throw new MalformedError(`no canonical form: ${messageOf(error)}`);
  }
}

/** The values of a payload by key. */
export interface PayloadValues {
  numericValues: ReadonlyMap<string, number>;
  stringValues: ReadonlyMap<string, string>;
}

/**
 * Parses a payload.
 * @throws {MalformedError} unless the text is the canonical form of numeric and string values
 */
export function parsePayload(payload: string): PayloadValues {
  let parsed: unknown;
  try {
    parsed = JSON.parse(payload);
  } catch {
    throw new MalformedError('the payload is not JSON');
  }
  const fields = entriesOf(parsed, 'the payload');
  const numericValues = entriesOf(fields.get('numeric_values'), 'numeric_values') as Map<string, number>;
  const stringValues = entriesOf(fields.get('string_values'), 'string_values') as Map<string, string>;
  if (canonicalPayload(numericValues, stringValues) !== payload) {
    throw new MalformedError('the payload is not in canonical form (RFC 8785)');
  }
  return { numericValues, stringValues };
}

function entriesOf(value: unknown, name: string): Map<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new MalformedError(`${name} is not an object`);
  }
  return new Map(Object.entries(value));
}

/**
 * Returns the bytes that are hashed: version, length and tenant_id, length and device_id, timestamp, payload.
 * @throws {MalformedError} for an identifier above 65,535 bytes, ill-formed Unicode, or a timestamp that is not a safe
 * integer ≥ 0
 */
export function leafPreimage(inputs: LeafInputs): Uint8Array {
  const tenantId = identifierBytes(inputs.tenantId, 'tenant_id');
  const deviceId = identifierBytes(inputs.deviceId, 'device_id');
  if (!Number.isSafeInteger(inputs.timestampSeconds) || inputs.timestampSeconds < 0) {
    throw new MalformedError(`timestamp ${inputs.timestampSeconds} is not a whole number of seconds since 1970`);
  }
  const payload = utf8.encode(inputs.payload);
  const preimage = new Uint8Array(1 + 2 + tenantId.length + 2 + deviceId.length + 8 + payload.length);
  const view = new DataView(preimage.buffer);
  let at = 0;
  preimage[at++] = LEAF_VERSION;
  for (const identifier of [tenantId, deviceId]) {
    view.setUint16(at, identifier.length);
    preimage.set(identifier, at + 2);
    at += 2 + identifier.length;
  }
  view.setBigUint64(at, BigInt(inputs.timestampSeconds));
  preimage.set(payload, at + 8);
  return preimage;
}

function identifierBytes(identifier: string, name: string): Uint8Array {
  // The encoder would replace a lone surrogate, so two identifiers could share a hash.
  if (!identifier.isWellFormed()) throw new MalformedError(`${name} is not well-formed Unicode`);
  const bytes = utf8.encode(identifier);
  if (bytes.length > 0xffff) throw new MalformedError(`${name} is longer than 65535 bytes`);
  return bytes;
}

/**
 * Returns the leaf hash, 32 bytes in natural order. Does not validate the payload: see `canonicalPayload`,
 * `parsePayload`.
 */
export function leafHash(inputs: LeafInputs): Uint8Array {
  return sha256d(leafPreimage(inputs));
}

/** Returns the leaf hash in the form of `data_hash`. */
export function dataHash(inputs: LeafInputs): string {
  return toHex(leafHash(inputs));
}

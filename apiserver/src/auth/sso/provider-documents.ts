// What is kept of the documents of providers, and of errors about them: whoever names a provider decides what they contain.
import type { ServerMetadata } from 'openid-client';
import { BlockedAddressError } from '../../platform/outbound/outbound-guard.ts';

/** Maximum bytes of a provider's metadata, and of its keys: they usually take a few KiB. */
export const documentBytes = 64 * 1024;

/** The fields of metadata that are used, here and by the library. */
const metadataFields: readonly string[] = [
  'issuer',
  'authorization_endpoint',
  'token_endpoint',
  'userinfo_endpoint',
  'jwks_uri',
  'end_session_endpoint',
  'scopes_supported',
  'token_endpoint_auth_methods_supported',
  'id_token_signing_alg_values_supported',
  'userinfo_signing_alg_values_supported',
  'authorization_response_iss_parameter_supported',
] satisfies (keyof ServerMetadata)[];

/** The members of public keys (RFC 7517 and RFC 7518) without certificates. */
const keyMembers = ['kty', 'kid', 'use', 'alg', 'key_ops', 'crv', 'n', 'e', 'x', 'y'];

const isPlain = (value: unknown): boolean =>
  typeof value === 'string' ||
  typeof value === 'boolean' ||
  (Array.isArray(value) && value.every((item) => typeof item === 'string'));

const pick = (from: object, names: readonly string[]): Record<string, unknown> =>
  Object.fromEntries(Object.entries(from).filter(([name, value]) => names.includes(name) && isPlain(value)));

/** Returns the fields of metadata that are used. */
export const keptMetadata = (read: ServerMetadata): ServerMetadata => ({
  ...pick(read, metadataFields),
  issuer: read.issuer,
});

const isAbsentOrShort = (value: unknown, maximumCharacters: number): boolean =>
  value === undefined || (typeof value === 'string' && value.length <= maximumCharacters);

/**
 * Reports whether signatures are verified in less than a millisecond: with other keys, anyone could keep the threads of a process busy.
 * The modulus of an RSA key may have 4096 bits and its exponent 32, in base64url with a zero byte before them.
 */
function isQuick(key: object): boolean {
  const { n, e } = key as { readonly n?: unknown; readonly e?: unknown };
  return isAbsentOrShort(n, 684) && isAbsentOrShort(e, 7);
}

/** Returns a key set with the members of keys that are used, without keys that take long, or undefined if it is none. */
export function keptKeys(read: unknown): { readonly keys: readonly object[] } | undefined {
  if (typeof read !== 'object' || read === null || !('keys' in read) || !Array.isArray(read.keys)) return undefined;
  const isKey = (key: unknown): key is object =>
    typeof key === 'object' && key !== null && 'kty' in key && typeof key.kty === 'string' && isQuick(key);
  return { keys: read.keys.filter(isKey).map((key) => pick(key, keyMembers)) };
}

/** Returns an error with its causes, but without the responses that they hold. */
export function keptError(error: Error, depth = 0): Error {
  if (error instanceof BlockedAddressError) return error;
  const { cause } = error;
  const kept = new Error(error.message.slice(0, 256), {
    cause: cause instanceof Error && depth < 4 ? keptError(cause, depth + 1) : undefined,
  });
  kept.name = error.name.slice(0, 64);
  for (const name of ['code', 'error'] as const) {
    const value: unknown = (error as Partial<Record<typeof name, unknown>>)[name];
    if (typeof value === 'string') Object.assign(kept, { [name]: value.slice(0, 64) });
  }
  return kept;
}

// Generation of ids (docs/architecture.md).
import { randomBytes, randomFillSync, randomUUID } from 'node:crypto';
import { NIL, v5, v7, validate } from 'uuid';

/** The namespace of Kellet's UUIDv5 ids. Must never change: a cluster rebuilt from Git must derive the same ids. */
const idNamespace = 'c9a1c1a8-6f0b-5d9e-9d5e-4b656c6c6574';

/** Kinds of resource whose id derives from its name. */
export type NamedKind = 'profile' | 'template' | 'package';

/** Returns the id of a profile, template or package: UUIDv5 of (tenant, kind, name of the custom resource). */
export function namedId(tenantId: string, kind: NamedKind, name: string): string {
  return v5(`${tenantId}\0${kind}\0${name}`, idNamespace);
}

/**
 * Returns the id of a rollout: UUIDv5 of (tenant, name, package, profile), so that a manifest reapplied after a rebuild
 * adopts its finished record instead of updating the fleet again.
 */
export function rolloutId(tenantId: string, name: string, packageId: string, profileId: string): string {
  return v5(`${tenantId}\0rollout\0${name}\0${packageId}\0${profileId}`, idNamespace);
}

/** The nil UUID (RFC 9562): comes before every id, and stands for none where a column needs a value. */
export const nilId: string = NIL;

/** Random bytes for many ids, because the system call that fetches them costs more than the rest of an id. */
const random = new Uint8Array(16 * 256);
let used = random.length;
let milliseconds = 0;
let sequence = 0;

/** Returns a new id that sorts by time (UUIDv7), and after every earlier one of this process. */
export function newId(): string {
  if (used === random.length) {
    randomFillSync(random);
    used = 0;
  }
  const bytes = random.subarray(used, (used += 16));
  const now = Date.now();
  if (now > milliseconds) {
    milliseconds = now;
    // Bytes that v7 does not use itself.
    sequence = ((bytes[0]! & 0x7f) << 24) | (bytes[1]! << 16) | (bytes[2]! << 8) | bytes[3]!;
  } else {
    sequence = (sequence + 1) | 0;
    if (sequence === 0) milliseconds += 1;
  }
  return v7({ random: bytes, msecs: milliseconds, seq: sequence });
}

/** Returns a new request id, which does not tell the time. */
export const newRequestId = (): string => randomUUID();

/** Reports whether the text is a UUID; Kellet has no other ids. */
export const isId = (text: string): boolean => validate(text);

/** Returns a text that may be an id as ids are stored: in lower case. Other texts stay as they are. */
export const storedId = (text: string): string => (isId(text) ? text.toLowerCase() : text);

/** Returns random bytes as base64url without padding. */
export const randomToken = (bytes: number): string => randomBytes(bytes).toString('base64url');

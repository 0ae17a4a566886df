// Ids: where each comes from (docs/architecture.md).
import { randomBytes, randomUUID } from 'node:crypto';
import { v5, v7, validate } from 'uuid';

/** The namespace of Kellet's UUIDv5 ids. Never changes: a cluster rebuilt from Git must find the same ids. */
const idNamespace = 'c9a1c1a8-6f0b-5d9e-9d5e-4b656c6c6574';

/** Kinds of resource whose id follows from its name. */
export type NamedKind = 'profile' | 'template' | 'package';

/** Id of a profile, template or package: UUIDv5 of (tenant, kind, name of the custom resource). */
export function namedId(tenantId: string, kind: NamedKind, name: string): string {
  return v5(`${tenantId}\0${kind}\0${name}`, idNamespace);
}

/**
 * Id of a rollout: UUIDv5 of (tenant, name, package, profile), so that a manifest applied again after a rebuild adopts its
 * finished record instead of updating the fleet again.
 */
export function rolloutId(tenantId: string, name: string, packageId: string, profileId: string): string {
  return v5(`${tenantId}\0rollout\0${name}\0${packageId}\0${profileId}`, idNamespace);
}

/** A new id that sorts by time (UUIDv7). */
export const newId = (): string => v7();

/** A new id for a request: of no order, but Node fetches the chance for many at a time, where `newId` makes a system call (2 µs). */
export const newRequestId = (): string => randomUUID();

/** Whether the text is a UUID; anything else cannot be an id of ours. */
export const isId = (text: string): boolean => validate(text);

/** Random bytes as base64url without padding. */
export const randomToken = (bytes: number): string => randomBytes(bytes).toString('base64url');

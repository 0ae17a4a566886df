// Finds what is held on behalf of a caller by the names under which a revocation or a change of its tenant is announced.
import { sessionPayload } from '../../auth/credentials/revocations.ts';
import type { Caller } from '../../platform/rpc.ts';

/** The name of everything held for callers of a tenant. */
export const tenantKey = (tenantId: string): string => `tenant:${tenantId}`;

/** The names under which a caller's credential can be meant: payloads of the revocation channel, and its tenant. */
export function keysOf(caller: Caller): string[] {
  const keys = [caller.credentialHash, tenantKey(caller.tenantId)];
  if (caller.sessionId !== '') keys.push(sessionPayload(caller.sessionId));
  return keys;
}

/** Items by the names of their caller, so that an announcement costs what it hits and not what is held. */
export class RevocationIndex<T> {
  private readonly items = new Map<string, Set<T>>();

  add(caller: Caller, item: T): void {
    for (const key of keysOf(caller)) {
      const found = this.items.get(key);
      if (found) found.add(item);
      else this.items.set(key, new Set([item]));
    }
  }

  remove(caller: Caller, item: T): void {
    for (const key of keysOf(caller)) {
      const found = this.items.get(key);
      if (found?.delete(item) && found.size === 0) this.items.delete(key);
    }
  }

  /** The items that an announcement means; `*`: all of them. A copy, so that what is found may be removed. */
  meant(key: string): T[] {
    if (key !== '*') return [...(this.items.get(key) ?? [])];
    return [...new Set([...this.items.values()].flatMap((found) => [...found]))];
  }
}

// Finds what is held for a caller by the keys under which revocations and tenant changes are announced.
import { sessionPayload, tenantPayload, userPayload } from '../../auth/credentials/revocations.ts';
import type { Caller } from '../../platform/rpc.ts';

/** Returns the keys that refer to a caller's credential: payloads of the revocation channel, and its tenant. */
function keysOf(caller: Caller): string[] {
  const keys = [caller.credentialHash, tenantPayload(caller.tenantId)];
  if (caller.sessionId !== '') keys.push(sessionPayload(caller.sessionId), userPayload(caller.userId));
  return keys;
}

/**
 * Items indexed by the keys of their caller, so that an announcement costs as much as it matches, not as much as is
 * held.
 */
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

  /** Returns a copy of the items that an announcement refers to, `*` meaning all, so that callers may remove them. */
  meant(key: string): T[] {
    if (key !== '*') return [...(this.items.get(key) ?? [])];
    return [...new Set([...this.items.values()].flatMap((found) => [...found]))];
  }
}

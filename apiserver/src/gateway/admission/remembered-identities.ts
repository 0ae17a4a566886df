// What the gateway remembers of credentials that were validated lately.
import { LRUCache } from 'lru-cache';
import { memoryOf } from '../../platform/memory-of.ts';
import type { Identity } from '../rate-limit/rate-limit.ts';
import { RevocationIndex } from './revocation-index.ts';

const maximumRemembered = 50_000;
const maximumBytes = 64 * 2 ** 20;
/** Memory of an identity besides its lists: that of a device, for example. */
const ownBytes = 1000;

interface Remembered {
  readonly identity: Identity;
  readonly until: number;
}

/** Groups of users grant up to 400 device groups, and an allowlist has up to 100 ranges: some 50 kB for each of a user's tokens. */
const sizeOf = ({ identity: { caller } }: Remembered): number =>
  ownBytes + memoryOf(caller.limitedGrants) + memoryOf(caller.ipAllowlist);

/** Identities by the hash of their credential, indexed by the keys that revoke them. The least recently used are forgotten first. */
export class RememberedIdentities {
  private readonly index = new RevocationIndex<string>();
  private readonly entries = new LRUCache<string, Remembered>({
    max: maximumRemembered,
    maxSize: maximumBytes,
    sizeCalculation: sizeOf,
    dispose: ({ identity }, credentialHash) => this.index.remove(identity.caller, credentialHash),
  });

  /** Roughly what all take in memory. */
  get bytes(): number {
    return this.entries.calculatedSize;
  }

  get(credentialHash: string): Remembered | undefined {
    return this.entries.get(credentialHash);
  }

  set(credentialHash: string, entry: Remembered): void {
    this.entries.set(credentialHash, entry);
    this.index.add(entry.identity.caller, credentialHash);
  }

  /** Forgets what an announcement refers to, `*` meaning all. */
  forget(key: string): void {
    for (const credentialHash of this.index.meant(key)) this.entries.delete(credentialHash);
  }
}

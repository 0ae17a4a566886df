// What devices inherit and share: the schema and the policies of a profile, or of a tenant, are held once for all of them.
import { memoryOf } from '../../platform/memory-of.ts';
import type { TenantDefaultFacts } from '../../policies/inheritance.ts';
import type { ProfileFacts } from '../../policies/profile-reader.ts';

type Facts = ProfileFacts | TenantDefaultFacts;

/** Facts with what they take in memory. */
interface Shared<Kind extends Facts> {
  readonly facts: Kind;
  readonly bytes: number;
  /** How many devices in the cache use them. */
  devices: number;
}

/** What a device in the cache uses. */
export interface Share {
  /** Ends the use. */
  release(): void;
}

/** The facts that devices in a cache share, by the key of the profile or the tenant. They are held while a device uses them. */
export class SharedFacts<Kind extends Facts> {
  private readonly held = new Map<string, Shared<Kind>>();
  private total = 0;

  /** What all facts take in memory, also those that have been replaced but are still used. */
  get bytes(): number {
    return this.total;
  }

  /** Returns the facts that are held, which may not be current. */
  get(key: string): Kind | undefined {
    return this.held.get(key)?.facts;
  }

  /** Returns the facts that are held if they are of the same revision, otherwise those given. */
  same(key: string, facts: Kind): Kind {
    const held = this.get(key);
    return held?.revision !== undefined && held.revision === facts.revision ? held : facts;
  }

  /** Holds facts, as `same` has returned them, for one more device. */
  use(key: string, facts: Kind): Share {
    let shared = this.held.get(key);
    if (shared?.facts !== facts) {
      shared = { facts, bytes: memoryOf(facts.telemetrySchema) + memoryOf(facts.otaPolicy), devices: 0 };
      this.held.set(key, shared);
      this.total += shared.bytes;
    }
    const used = shared;
    used.devices += 1;
    return {
      release: () => {
        used.devices -= 1;
        if (used.devices > 0) return;
        this.total -= used.bytes;
        if (this.held.get(key) === used) this.held.delete(key);
      },
    };
  }
}

// Where a device keeps its identity.
import type { Identity } from '../messages.ts';

/** Keeps the identity of a device. The key is shown only once, so it must be durable when `save` resolves. */
export interface KeyStore {
  load(): Promise<Identity | undefined>;
  save(identity: Identity): Promise<void>;
}

/** Keeps the identity in memory, for devices that get it from elsewhere at each start. */
export class MemoryKeyStore implements KeyStore {
  private identity: Identity | undefined;

  constructor(identity?: Identity) {
    this.identity = identity;
  }

  load(): Promise<Identity | undefined> {
    return Promise.resolve(this.identity);
  }

  save(identity: Identity): Promise<void> {
    this.identity = identity;
    return Promise.resolve();
  }
}

// Limits refused claims, so that nobody can try hardware ids or keys at speed. Claims that succeed are not limited: a factory
// claims thousands of devices with one key from one address.
import { addressBlock } from '../../platform/addresses/address-block.ts';
import type { Clock } from '../../platform/clock.ts';
import { resourceExhausted } from '../../platform/errors.ts';
import { TokenBuckets } from '../../platform/token-bucket.ts';

/** Refused claims of one key from one address; a key is not limited from everywhere because of one address. */
const ofKey = { perSecond: 1, burst: 100 };
/** Refused claims from one address (IPv6: /64), with any key. */
const ofAddress = { perSecond: 10, burst: 1000 };

/** Counts refused claims in this process. */
export class ClaimThrottle {
  private readonly keys: TokenBuckets;
  private readonly addresses: TokenBuckets;

  constructor(clock: Clock) {
    this.keys = new TokenBuckets(clock, ofKey);
    this.addresses = new TokenBuckets(clock, ofAddress);
  }

  /** Throws RESOURCE_EXHAUSTED if too many claims with the key, or from the address, were refused. */
  check(keyHash: Buffer, address: string): void {
    const block = addressBlock(address);
    const seconds = Math.max(this.addresses.wait(block), this.keys.wait(`${keyHash.toString('hex')}/${block}`));
    if (seconds > 0) throw resourceExhausted('too many claims were refused', seconds);
  }

  /** Counts a refused claim. */
  refused(keyHash: Buffer, address: string): void {
    const block = addressBlock(address);
    this.addresses.charge(block);
    this.keys.charge(`${keyHash.toString('hex')}/${block}`);
  }
}

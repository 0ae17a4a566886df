// Which devices are watched, in a form of constant size that any process may ask: a bit for each of 65,536 hashes of a device.
// A device that is watched is always seen as such; one that is not may be, when it shares a bit.

const slots = 65_536;

/** The bits as they are announced. */
export type InterestBits = Uint8Array;

/** Bytes of an announcement. */
export const interestBytes = slots / 8;

/** The bit of `tenant/device`: FNV-1a, folded. */
function slotOf(key: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < key.length; index += 1) {
    hash = Math.imul(hash ^ key.charCodeAt(index), 0x01000193);
  }
  return (hash ^ (hash >>> 16)) & (slots - 1);
}

/** Whether the device may be among those that were announced. */
export function mayWatch(bits: InterestBits, key: string): boolean {
  const slot = slotOf(key);
  return (bits[slot >>> 3]! & (1 << (slot & 7))) !== 0;
}

/** The devices that this process watches. */
export class Interest {
  private readonly counts = new Uint32Array(slots);
  private readonly bits = new Uint8Array(interestBytes);
  private watched = 0;

  /** A device is watched from now on. */
  add(key: string): void {
    const slot = slotOf(key);
    this.watched += 1;
    this.counts[slot]! += 1;
    this.bits[slot >>> 3]! |= 1 << (slot & 7);
  }

  /** A device that was added is watched no longer. */
  remove(key: string): void {
    const slot = slotOf(key);
    this.watched -= 1;
    this.counts[slot]! -= 1;
    if (this.counts[slot] === 0) this.bits[slot >>> 3]! &= ~(1 << (slot & 7));
  }

  /** What to announce: a copy of the bits, no bytes at all when nothing is watched. */
  announcement(): InterestBits {
    return this.watched === 0 ? new Uint8Array() : this.bits.slice();
  }
}

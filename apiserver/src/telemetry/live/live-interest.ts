// Records which devices are watched, in a constant-size form that any process can query: a bitmap of 65,536 hash slots.
// A watched device always tests positive; an unwatched one may test positive if it shares a slot.

const slots = 65_536;

/** The bitmap as it is announced. */
export type InterestBits = Uint8Array;

/** Size of an announcement in bytes. */
export const interestBytes = slots / 8;

/** Returns the slot of `tenant/device`: FNV-1a, folded. */
function slotOf(key: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < key.length; index += 1) {
    hash = Math.imul(hash ^ key.charCodeAt(index), 0x01000193);
  }
  return (hash ^ (hash >>> 16)) & (slots - 1);
}

/** Reports whether the device may be among the announced ones. */
export function mayWatch(bits: InterestBits, key: string): boolean {
  const slot = slotOf(key);
  return (bits[slot >>> 3]! & (1 << (slot & 7))) !== 0;
}

/** The devices that this process watches. */
export class Interest {
  private readonly counts = new Uint32Array(slots);
  private readonly bits = new Uint8Array(interestBytes);
  private watched = 0;

  /** Adds a watched device. */
  add(key: string): void {
    const slot = slotOf(key);
    this.watched += 1;
    this.counts[slot]! += 1;
    this.bits[slot >>> 3]! |= 1 << (slot & 7);
  }

  /** Removes a device that was added. */
  remove(key: string): void {
    const slot = slotOf(key);
    this.watched -= 1;
    this.counts[slot]! -= 1;
    if (this.counts[slot] === 0) this.bits[slot >>> 3]! &= ~(1 << (slot & 7));
  }

  /** Returns the announcement: a copy of the bitmap, or no bytes if nothing is watched. */
  announcement(): InterestBits {
    return this.watched === 0 ? new Uint8Array() : this.bits.slice();
  }
}

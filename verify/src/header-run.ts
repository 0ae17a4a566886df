// A run of consecutive headers that grows at both ends, of which only hashes and Merkle roots are kept.
import { equalBytes, toDisplayHex } from './bytes.ts';
import { RefutedError } from './errors.ts';
import { checkHeaderChain, type HeaderAtHeight } from './headers.ts';
import type { Pin } from './pins.ts';

interface Block {
  hash: Uint8Array;
  merkleRoot: Uint8Array;
}

/** The run. */
export class HeaderRun {
  /** By height. */
  private readonly blocks = new Map<number, Block>();
  private first = 0;
  private last = -1;
  /** Hash of the block before the first. */
  private previousHash: Uint8Array = new Uint8Array();
  /** Expected number of hashes for all of them together. */
  work = 0n;

  /** Heights of the first and the last header; undefined for an empty run. */
  get span(): { first: number; last: number } | undefined {
    return this.blocks.size === 0 ? undefined : { first: this.first, last: this.last };
  }

  /**
   * Adds headers in order of height, each below the first or above the last one so far.
   * @throws {MalformedError} for an invalid header or target
   * @throws {RefutedError} for a gap, a broken link, or a hash above its target
   */
  add(headers: readonly HeaderAtHeight[]): void {
    if (this.blocks.size === 0) return this.append(headers);
    const below = headers.filter(({ height }) => height < this.first);
    const above = headers.filter(({ height }) => height > this.last);
    if (below.length + above.length < headers.length) throw new RefutedError('a header appears twice');
    if (below.length > 0) {
      const { headers: checked, work } = checkHeaderChain(below);
      const lowest = checked[0]!;
      const highest = checked.at(-1)!;
      if (highest.height !== this.first - 1 || !equalBytes(highest.hash, this.previousHash)) {
        throw new RefutedError(`header ${this.first} does not follow header ${highest.height}`);
      }
      for (const { height, hash, header } of checked) {
        this.blocks.set(height, { hash, merkleRoot: header.merkleRoot });
      }
      this.first = lowest.height;
      this.previousHash = lowest.header.previousHash;
      this.work += work;
    }
    this.append(above);
  }

  /** Returns the Merkle root of a block, or undefined if the run does not contain it. */
  merkleRoot(height: number): Uint8Array | undefined {
    return this.blocks.get(height)?.merkleRoot;
  }

  /**
   * Returns the first pin among the headers at or above a height, or undefined. It covers the blocks below it; those above it
   * rest only on their proof of work.
   * @throws {RefutedError} if any pin contradicts them or the block before them
   */
  findPin(pins: readonly Pin[], from: number): Pin | undefined {
    const hashAt = (height: number): string | undefined => {
      if (height === this.first - 1 && this.blocks.size > 0) return toDisplayHex(this.previousHash);
      const block = this.blocks.get(height);
      return block && toDisplayHex(block.hash);
    };
    for (const pin of pins) {
      const hash = hashAt(pin.height);
      if (hash !== undefined && hash !== pin.hash) {
        throw new RefutedError(`the ${pin.source} has block ${pin.hash} at height ${pin.height}, the proof ${hash}`);
      }
    }
    return pins.find((pin) => pin.height >= from && this.blocks.has(pin.height));
  }

  private append(headers: readonly HeaderAtHeight[]): void {
    if (headers.length === 0) return;
    const { headers: checked, work } = checkHeaderChain(headers);
    const lowest = checked[0]!;
    if (this.blocks.size === 0) {
      this.first = lowest.height;
      this.previousHash = lowest.header.previousHash;
    } else if (
      lowest.height !== this.last + 1 ||
      !equalBytes(lowest.header.previousHash, this.blocks.get(this.last)!.hash)
    ) {
      throw new RefutedError(`header ${lowest.height} does not follow header ${this.last}`);
    }
    for (const { height, hash, header } of checked) this.blocks.set(height, { hash, merkleRoot: header.merkleRoot });
    this.last = checked.at(-1)!.height;
    this.work += work;
  }
}

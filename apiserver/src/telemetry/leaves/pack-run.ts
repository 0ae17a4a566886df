// Packs the leaves of batches into a run.
import {
  type Block,
  EntryWriter,
  hashBytes,
  HashWriter,
  idBytes,
  NumberWriter,
  parts,
  prefixOf,
  widthOf,
} from './leaf-blocks.ts';

/** A batch with the hashes and the devices of its leaves, one after another. */
export interface LeafBatch {
  readonly id: Buffer;
  readonly hashes: Uint8Array;
  readonly devices: Buffer;
}

/** What is known of a run as a whole. */
export interface RunFacts {
  readonly leaves: number;
  readonly batches: number;
  readonly devices: number;
  readonly leastBatch: Buffer;
  readonly greatestBatch: Buffer;
}

/** Most leaves of a packed run: a prefix and a number share the 53 bits of an exact integer. */
const mostPackedLeaves = 2 ** 21;

/** Packs batches, which must have leaves. Throws if they have more than `mostPackedLeaves` together. */
export function packRun(given: readonly LeafBatch[]): { readonly facts: RunFacts; readonly blocks: Block[] } {
  const batches = given.toSorted((a, b) => a.id.compare(b.id));
  const leaves = batches.reduce((sum, { hashes }) => sum + hashes.length / hashBytes, 0);
  if (leaves > mostPackedLeaves) throw new Error(`${leaves} leaves are too many for a run`);
  const blocks: Block[] = [];
  const keys = new Float64Array(leaves);
  const ranks = new Map<string, number>();
  const places = new Uint32Array(leaves);
  const batchWriter = new EntryWriter(parts.batches, blocks);
  let leaf = 0;
  for (const { id, hashes, devices } of batches) {
    batchWriter.add(id, leaf, leaf);
    for (let at = 0, device = 0; at < hashes.length; at += hashBytes, device += idBytes) {
      keys[leaf] = prefixOf(hashes, at) * mostPackedLeaves + leaf;
      const key = devices.toString('latin1', device, device + idBytes);
      let found = ranks.get(key);
      if (found === undefined) ranks.set(key, (found = ranks.size));
      places[leaf] = found;
      leaf += 1;
    }
  }
  batchWriter.end();
  writeHashes(keys, blocks);
  // So far a device has the place where it was met first.
  const met = [...ranks.keys()];
  const sorted = met.toSorted();
  const rankOf = new Uint32Array(met.length);
  for (const [rank, id] of sorted.entries()) rankOf[ranks.get(id)!] = rank;
  const slots = new Uint32Array(sorted.length + 1);
  const placeWriter = new NumberWriter(parts.places, widthOf(sorted.length), blocks);
  for (let index = 0; index < leaves; index += 1) {
    const rank = (places[index] = rankOf[places[index]!]!);
    placeWriter.add(rank);
    slots[rank + 1]! += 1;
  }
  placeWriter.end();
  for (let rank = 0; rank < sorted.length; rank += 1) slots[rank + 1]! += slots[rank]!;
  const deviceWriter = new EntryWriter(parts.devices, blocks);
  for (const [rank, id] of sorted.entries()) deviceWriter.add(Buffer.from(id, 'latin1'), slots[rank]!, rank);
  deviceWriter.end();
  const postings = new Uint32Array(leaves);
  for (let index = 0; index < leaves; index += 1) postings[slots[places[index]!]!++] = index;
  const postingWriter = new NumberWriter(parts.postings, widthOf(leaves), blocks);
  for (const posting of postings) postingWriter.add(posting);
  postingWriter.end();
  const [leastBatch, greatestBatch] = [batches[0]!.id, batches.at(-1)!.id];
  return { facts: { leaves, batches: batches.length, devices: sorted.length, leastBatch, greatestBatch }, blocks };
}

function writeHashes(keys: Float64Array, blocks: Block[]): void {
  keys.sort();
  const writer = new HashWriter(widthOf(keys.length), blocks);
  for (const key of keys) {
    const prefix = Math.floor(key / mostPackedLeaves);
    writer.add(prefix, key - prefix * mostPackedLeaves);
  }
  writer.end();
}

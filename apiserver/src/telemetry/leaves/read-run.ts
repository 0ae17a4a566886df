// Reads a run as a whole, for checks.
import { entryBytes, entryId, entryValue, type Part, parts, readHashes, widthOf } from './leaf-blocks.ts';
import { type MergeSource, readNumbers } from './merge-runs.ts';

/** An id with its number, see leaf-blocks.ts. */
export interface Entry {
  readonly id: Buffer;
  readonly value: number;
}

/** What a run says. */
export interface RunContents {
  readonly batches: readonly Entry[];
  readonly devices: readonly Entry[];
  readonly places: Uint32Array;
  readonly postings: Uint32Array;
  /** The prefix of the hash of each leaf; NaN if it has none, or several. */
  readonly prefixes: Float64Array;
}

/** Returns the contents of a run, however damaged it is. */
export async function readRun(source: MergeSource): Promise<RunContents> {
  const entries = async (part: Part): Promise<Entry[]> => {
    const found: Entry[] = [];
    for await (const { data } of source.blocks(part)) {
      for (let place = 0; (place + 1) * entryBytes <= data.length; place += 1)
        found.push({ id: entryId(data, place), value: entryValue(data, place) });
    }
    return found;
  };
  const numbers = async (part: Part, width: number): Promise<Uint32Array> => {
    const found = new Uint32Array(source.leaves);
    let count = 0;
    for await (const { data } of source.blocks(part)) {
      for (const value of readNumbers(data.subarray(0, data.length - (data.length % width)), width))
        found[count++] = value;
    }
    return found.subarray(0, Math.min(count, found.length));
  };
  const prefixes = new Float64Array(source.leaves).fill(NaN);
  const repeated = new Set<number>();
  for await (const block of source.blocks(parts.hashes)) {
    const { prefixes: some, leaves, count } = readHashes(block, source.leaves);
    for (let index = 0; index < count; index += 1) {
      const leaf = leaves[index]!;
      if (!Number.isNaN(prefixes[leaf] ?? NaN)) repeated.add(leaf);
      prefixes[leaf] = some[index]!;
    }
  }
  for (const leaf of repeated) prefixes[leaf] = NaN;
  return {
    batches: await entries(parts.batches),
    devices: await entries(parts.devices),
    places: await numbers(parts.places, widthOf(source.devices)),
    postings: await numbers(parts.postings, widthOf(source.leaves)),
    prefixes,
  };
}

/** Returns why the devices of a run do not agree with its leaves. */
export function devicesProblem(
  { leaves }: { readonly leaves: number },
  { devices, places, postings }: RunContents,
): string | undefined {
  if (places.length !== leaves) return `it has the devices of ${places.length} of its ${leaves} leaves`;
  if (postings.length !== leaves) return `it lists ${postings.length} of its ${leaves} leaves by device`;
  for (const [rank, { id, value }] of devices.entries()) {
    if (rank > 0 && devices[rank - 1]!.id.compare(id) >= 0) return 'its devices are not in order';
    for (let slot = value; slot < (devices[rank + 1]?.value ?? leaves); slot += 1) {
      const leaf = postings[slot]!;
      if (places[leaf] !== rank || (slot > value && postings[slot - 1]! >= leaf))
        return `the device of leaf ${leaf} is not the one that lists it`;
    }
  }
  return devices[0]?.value === 0 ? undefined : 'it has no devices';
}
